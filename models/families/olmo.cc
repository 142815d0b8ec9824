// OLMo 2 and 3.
//
// Norms follow attention and MLP, and none precedes them: the projections read the residual stream
// itself. q and k are normalized over all heads at once. In OLMo 3 three of four layers have a
// window, and rope scaling applies to the others only. Source: modeling_olmo2.py and
// modeling_olmo3.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures2[] = {"Olmo2ForCausalLM"};
constexpr absl::string_view kModelTypes2[] = {"olmo2"};
constexpr absl::string_view kKeys2[] = {"attention_bias"};
constexpr absl::string_view kArchitectures3[] = {"Olmo3ForCausalLM"};
constexpr absl::string_view kModelTypes3[] = {"olmo3"};
constexpr absl::string_view kKeys3[] = {"attention_bias", "sliding_window"};
constexpr TensorNames kNames{.attn_in = "",
                             .attn_out = "post_attention_layernorm",
                             .mlp_in = "",
                             .mlp_out = "post_feedforward_layernorm",
                             .q_norm = "self_attn.q_norm",
                             .k_norm = "self_attn.k_norm"};

// GGUF files of both families name the architecture olmo2. Files with windows are OLMo 3.
constexpr TensorNames GgufNames() {
  TensorNames names = WithGgufQkNorm(kGgufNames);
  names.attn_in = "";
  names.attn_out = "post_attention_norm";
  names.mlp_in = "";
  names.mlp_out = "post_ffw_norm";
  return names;
}
constexpr absl::string_view kGgufKeys3[] = {"attention.sliding_window",
                                            "attention.sliding_window_pattern",
                                            "rope.freq_base_swa", "rope.scaling.yarn_attn_factor"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, FamilyNamed(config.family)));
  for (LayerSpec& layer : spec.layers) {
    layer.attn_out = layer.attn_in;
    layer.mlp_out = layer.mlp_in;
    layer.attn_in = {};
    layer.mlp_in = {};
    layer.heads.qk_norm = RmsNormSpec(config);
    layer.heads.qk_norm_scope = QkNormScope::kWhole;
  }
  return spec;
}

}  // namespace

const Family& Olmo2Family() {
  static const Family kFamily{.name = "olmo2",
                              .architectures = kArchitectures2,
                              .model_types = kModelTypes2,
                              .defaults = {.rms_norm_eps = 1e-5},
                              .keys = kKeys2,
                              .names = kNames,
                              .gguf_architecture = "olmo2",
                              .gguf_names = GgufNames(),
                              .build_spec = BuildSpec};
  return kFamily;
}

const Family& Olmo3Family() {
  static const Family kFamily{.name = "olmo3",
                              .architectures = kArchitectures3,
                              .model_types = kModelTypes3,
                              .defaults = {.rope_theta = 500000,
                                           .rms_norm_eps = 1e-5,
                                           .sliding_window = 4096,
                                           .sliding_window_pattern = 4},
                              .keys = kKeys3,
                              .windows = WindowRule::kPattern,
                              .scales_full_layers_only = true,
                              .names = kNames,
                              .gguf_architecture = "olmo2",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys3,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
