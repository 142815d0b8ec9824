// GLM-4.5, 4.6 and 4.7.
//
// RMS pre-norms, half-split rope on the first half of each head, q and k with biases and, in some
// sizes, norms per head. The output projection never has a bias. MoE layers route by sigmoids like
// DeepSeek-V3 and follow first_k_dense_replace dense layers. GLM-4.7-Flash is in deepseek.cc.
// Source: modeling_glm4_moe.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"glm4_moe"};
// Layers for multi-token prediction (num_nextn_predict_layers) follow the last layer and are
// skipped.
constexpr absl::string_view kKeys[] = {"attention_bias",
                                       "partial_rotary_factor",
                                       "use_qk_norm",
                                       "n_routed_experts",
                                       "num_experts",
                                       "num_local_experts",
                                       "n_shared_experts",
                                       "num_experts_per_tok",
                                       "experts_per_token",
                                       "moe_intermediate_size",
                                       "n_group",
                                       "topk_group",
                                       "norm_topk_prob",
                                       "routed_scaling_factor",
                                       "first_k_dense_replace",
                                       "num_nextn_predict_layers",
                                       "num_mtp_layers"};
constexpr ConfigDefaults kDefaults{.rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 131072,
                                   .num_key_value_heads = 8,
                                   .use_qk_norm = false,
                                   .num_experts = 128,
                                   .experts_per_token = 8,
                                   .moe_intermediate_size = 1408,
                                   .partial_rotary_factor = 0.5,
                                   .norm_topk_prob = true,
                                   .first_k_dense_replace = 1,
                                   .n_shared_experts = 1};
constexpr TensorNames kNames{.q_norm = "self_attn.q_norm",
                             .k_norm = "self_attn.k_norm",
                             .choice_bias = "gate.e_score_correction_bias",
                             .shared = "shared_experts"};

constexpr TensorNames GgufNames() {
  TensorNames names =
      WithGgufChoiceBias(WithGgufQkNorm(WithGgufSharedExpert(WithGgufExperts(kGgufNames))));
  names.mlp_in = "post_attention_norm";
  return names;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_RETURN_IF_ERROR(
      CheckName("scoring_func", config.moe.scoring_func, "sigmoid", Glm4MoeFamily()));
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Glm4MoeFamily()));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.o_bias = false;
    if (config.use_qk_norm) layer.heads.qk_norm = RmsNormSpec(config);
  }
  UseExperts(config, SigmoidRouting(config, spec.layers[0].dense), &spec);
  return spec;
}

}  // namespace

const Family& Glm4MoeFamily() {
  static const Family kFamily{.name = "glm4_moe",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .may_omit_qk_norm = true,
                              .names = kNames,
                              .gguf_architecture = "glm4moe",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufSigmoidKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
