#include "models/families/olmo.h"

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Olmo2ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"olmo2"};
constexpr absl::string_view kKeys[] = {"attention_bias"};
constexpr TensorNames kNames{.attn_in = "",
                             .attn_out = "post_attention_layernorm",
                             .mlp_in = "",
                             .mlp_out = "post_feedforward_layernorm",
                             .q_norm = "self_attn.q_norm",
                             .k_norm = "self_attn.k_norm"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Olmo2Family()));
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
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = {.rms_norm_eps = 1e-5},
                              .keys = kKeys,
                              .names = kNames,
                              .gguf_architecture = "",
                              .gguf_names = {},
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
