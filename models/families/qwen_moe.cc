// Qwen3 MoE (30B-A3B, 235B-A22B).
//
// Qwen3 with an MoE instead of the MLP, except in the layers that mlp_only_layers or
// decoder_sparse_step make dense. Routing is a softmax over all experts. The best
// num_experts_per_tok are chosen. With norm_topk_prob their weights are divided by their sum.
// Source: modeling_qwen3_moe.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"qwen3_moe"};
// transformers 5 saves num_experts as num_local_experts.
constexpr absl::string_view kKeys[] = {
    "attention_bias",      "num_experts",         "num_local_experts",     "n_routed_experts",
    "experts_per_token",   "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "decoder_sparse_step", "mlp_only_layers",     "sliding_window",        "use_sliding_window",
    "use_qk_norm"};
constexpr ConfigDefaults kDefaults{.max_position_embeddings = 32768,
                                   .num_key_value_heads = 4,
                                   .sliding_window = 4096,
                                   .num_experts = 128,
                                   .experts_per_token = 8,
                                   .moe_intermediate_size = 768};
constexpr TensorNames kNames{.q_norm = "self_attn.q_norm", .k_norm = "self_attn.k_norm"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, Qwen3MoeFamily()));
  for (LayerSpec& layer : spec.layers) layer.heads.qk_norm = RmsNormSpec(config);
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxAll;
  moe.renormalize = config.moe.norm_topk_prob;
  UseExperts(config, moe, &spec);
  return spec;
}

}  // namespace

const Family& Qwen3MoeFamily() {
  static const Family kFamily{.name = "qwen3_moe",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .windows = WindowRule::kAll,
                              .names = kNames,
                              .gguf_architecture = "qwen3moe",
                              .gguf_names = WithGgufQkNorm(WithGgufExperts(kGgufNames)),
                              .gguf_keys = kGgufExpertKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
