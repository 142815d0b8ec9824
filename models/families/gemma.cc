// Gemma 2 and the text model of Gemma 3, alone or inside a model with a vision tower.
//
// Sandwich norms multiply by 1 + weight. Embeddings are scaled by sqrt(hidden_size), scores by
// query_pre_attn_scalar^-0.5. The activation is tanh GELU: hidden_activation is read and hidden_act
// is not. Gemma 2 caps scores and logits and has windows in every second layer. Gemma 3 normalizes
// each head of q and k. All its layers but every sixth have windows and use a second rope table.
// Source: modeling_gemma2.py and modeling_gemma3.py of Hugging Face transformers.

#include <cmath>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kActivations[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"};
constexpr absl::string_view kArchitectures2[] = {"Gemma2ForCausalLM"};
constexpr absl::string_view kModelTypes2[] = {"gemma2"};
constexpr absl::string_view kKeys2[] = {"attention_bias",          "hidden_activation",
                                        "query_pre_attn_scalar",   "attn_logit_softcapping",
                                        "final_logit_softcapping", "sliding_window"};
constexpr ConfigDefaults kDefaults2{.hidden_act = "gelu_pytorch_tanh",
                                    .max_position_embeddings = 8192,
                                    .tie_word_embeddings = true,
                                    .num_key_value_heads = 4,
                                    .head_dim = 256,
                                    .sliding_window = 4096,
                                    .attn_logit_softcapping = 50,
                                    .final_logit_softcapping = 30};
constexpr TensorNames kNames2{.attn_out = "post_attention_layernorm",
                              .mlp_in = "pre_feedforward_layernorm",
                              .mlp_out = "post_feedforward_layernorm"};

constexpr absl::string_view kArchitectures3[] = {"Gemma3ForCausalLM"};
constexpr absl::string_view kModelTypes3[] = {"gemma3_text"};
constexpr absl::string_view kKeys3[] = {
    "attention_bias", "hidden_activation",      "query_pre_attn_scalar",  "rope_local_base_freq",
    "sliding_window", "sliding_window_pattern", "_sliding_window_pattern"};
constexpr ConfigDefaults kDefaults3{.rope_theta = 1000000,
                                    .rope_local_base_freq = 10000,
                                    .hidden_act = "gelu_pytorch_tanh",
                                    .max_position_embeddings = 131072,
                                    .tie_word_embeddings = true,
                                    .num_key_value_heads = 4,
                                    .head_dim = 256,
                                    .sliding_window = 4096};
constexpr TensorNames kNames3{.attn_out = "post_attention_layernorm",
                              .mlp_in = "pre_feedforward_layernorm",
                              .mlp_out = "post_feedforward_layernorm",
                              .q_norm = "self_attn.q_norm",
                              .k_norm = "self_attn.k_norm"};

constexpr absl::string_view kVisionArchitectures[] = {"Gemma3ForConditionalGeneration"};
constexpr absl::string_view kVisionModelTypes[] = {"gemma3"};
constexpr absl::string_view kVisionPrefixes[] = {"vision_tower.", "multi_modal_projector."};
constexpr TensorNames NamesInVisionModel() {
  TensorNames names = kNames3;
  names.skipped = kVisionPrefixes;
  names.embedding = "language_model.model.embed_tokens";
  names.final_norm = "language_model.model.norm";
  names.head = "language_model.lm_head";
  names.layer_prefix = "language_model.model.layers.";
  return names;
}

constexpr absl::string_view kGgufKeys2[] = {"attention.scale", "attention.sliding_window",
                                            "attn_logit_softcapping", "final_logit_softcapping"};
constexpr absl::string_view kGgufKeys3[] = {"attention.scale", "attention.sliding_window",
                                            "attention.sliding_window_pattern",
                                            "rope.freq_base_swa"};
constexpr TensorNames GgufNames() {
  TensorNames names = WithGgufQkNorm(kGgufNames);
  names.attn_out = "post_attention_norm";
  names.mlp_out = "post_ffw_norm";
  return names;
}

// Builds the spec that Gemma 2 and Gemma 3 share.
absl::StatusOr<ModelSpec> SandwichSpec(const ModelConfig& config, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, family));
  const NormSpec norm = RmsNormSpec(config, /*weight_offset=*/1);
  for (LayerSpec& layer : spec.layers) {
    layer.attn_in = norm;
    layer.attn_out = norm;
    layer.mlp_in = norm;
    layer.mlp_out = norm;
    layer.heads.scale = static_cast<float>(1.0 / std::sqrt(config.query_pre_attn_scalar));
  }
  spec.final_norm = norm;
  spec.embed_scale =
      RoundToTrainingDType(config, std::sqrt(static_cast<double>(config.hidden_size)));
  return spec;
}

absl::StatusOr<ModelSpec> BuildSpec2(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, SandwichSpec(config, Gemma2Family()));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.softcap = static_cast<float>(config.attn_logit_softcapping);
  }
  spec.logit_softcap = static_cast<float>(config.final_logit_softcapping);
  return spec;
}

absl::StatusOr<ModelSpec> BuildSpec3(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, SandwichSpec(config, FamilyNamed(config.family)));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.qk_norm = RmsNormSpec(config, /*weight_offset=*/1);
  }
  return spec;
}

}  // namespace

const Family& Gemma2Family() {
  static const Family kFamily{.name = "gemma2",
                              .architectures = kArchitectures2,
                              .model_types = kModelTypes2,
                              .defaults = kDefaults2,
                              .activations = kActivations,
                              .keys = kKeys2,
                              .windows = WindowRule::kEven,
                              .names = kNames2,
                              .gguf_architecture = "gemma2",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys2,
                              .gguf_wide_block_count = 46,
                              .build_spec = BuildSpec2};
  return kFamily;
}

const Family& Gemma3Family() {
  static const Family kFamily{.name = "gemma3",
                              .architectures = kArchitectures3,
                              .model_types = kModelTypes3,
                              .defaults = kDefaults3,
                              .activations = kActivations,
                              .keys = kKeys3,
                              .windows = WindowRule::kPattern,
                              .names = kNames3,
                              .gguf_architecture = "gemma3",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys3,
                              .gguf_wide_block_count = 62,
                              .build_spec = BuildSpec3};
  return kFamily;
}

const Family& Gemma3VisionFamily() {
  static const Family kFamily = [] {
    Family family = InMultimodalModel(Gemma3Family(), "gemma3_vision", kVisionArchitectures,
                                      kVisionModelTypes, NamesInVisionModel());
    family.defaults.vocab_size = 262208;
    family.defaults.num_attention_heads = 8;
    return family;
  }();
  return kFamily;
}

}  // namespace quire::models
