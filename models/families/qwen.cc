// Qwen 2, 2.5 and 3, dense.
//
// The Llama architecture. Layers from max_window_layers on have windows if use_sliding_window is
// true. Qwen 2 always has biases on q, k and v and none on o. Qwen 3 normalizes each head of q and
// k before rope, and attention_bias adds all four biases. Source: modeling_qwen2.py and
// modeling_qwen3.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures2[] = {"Qwen2ForCausalLM"};
constexpr absl::string_view kModelTypes2[] = {"qwen2"};
constexpr absl::string_view kKeys2[] = {"sliding_window", "use_sliding_window",
                                        "max_window_layers"};
constexpr absl::string_view kArchitectures3[] = {"Qwen3ForCausalLM"};
constexpr absl::string_view kModelTypes3[] = {"qwen3"};
constexpr absl::string_view kKeys3[] = {"attention_bias", "sliding_window", "use_sliding_window",
                                        "max_window_layers", "use_qk_norm"};
constexpr ConfigDefaults kDefaults2{
    .max_position_embeddings = 32768, .num_key_value_heads = 32, .sliding_window = 4096};
constexpr ConfigDefaults kDefaults3{.max_position_embeddings = 32768,
                                    .num_key_value_heads = 32,
                                    .head_dim = 128,
                                    .sliding_window = 4096};
constexpr TensorNames kNames3{.q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"};

absl::StatusOr<ModelSpec> BuildSpec2(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Qwen2Family()));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.q_bias = true;
    layer.heads.k_bias = true;
    layer.heads.v_bias = true;
    layer.heads.o_bias = false;
  }
  return spec;
}

absl::StatusOr<ModelSpec> BuildSpec3(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Qwen3Family()));
  for (LayerSpec& layer : spec.layers) layer.heads.qk_norm = RmsNormSpec(config);
  return spec;
}

}  // namespace

const Family& Qwen2Family() {
  static const Family kFamily{.name = "qwen2",
                              .architectures = kArchitectures2,
                              .model_types = kModelTypes2,
                              .defaults = kDefaults2,
                              .keys = kKeys2,
                              .windows = WindowRule::kFromLayer,
                              .gguf_architecture = "qwen2",
                              .gguf_names = kGgufNames,
                              .build_spec = BuildSpec2};
  return kFamily;
}

const Family& Qwen3Family() {
  static const Family kFamily{.name = "qwen3",
                              .architectures = kArchitectures3,
                              .model_types = kModelTypes3,
                              .defaults = kDefaults3,
                              .keys = kKeys3,
                              .windows = WindowRule::kFromLayer,
                              .names = kNames3,
                              .gguf_architecture = "qwen3",
                              .gguf_names = WithGgufQkNorm(kGgufNames),
                              .build_spec = BuildSpec3};
  return kFamily;
}

}  // namespace quire::models
