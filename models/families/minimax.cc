// MiniMax-M2.
//
// RMS pre-norms, half-split rope on the first rotary_dim columns of each head, and norms over all
// heads of q and of k. Every layer has experts, chosen by sigmoids with a correction bias. The
// weights of the chosen experts are divided by their sum. Source: modeling_minimax_m2.py of Hugging
// Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"MiniMaxM2ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"minimax_m2"};
constexpr absl::string_view kKeys[] = {
    "partial_rotary_factor", "rotary_dim",       "use_qk_norm",         "num_local_experts",
    "num_experts",           "n_routed_experts", "num_experts_per_tok", "experts_per_token",
    "scoring_func",          "use_routing_bias"};
constexpr ConfigDefaults kDefaults{.rope_theta = 5e6,
                                   .max_position_embeddings = 196608,
                                   .num_key_value_heads = 8,
                                   .head_dim = 128,
                                   .num_experts = 256,
                                   .experts_per_token = 8};
constexpr TensorNames kNames{.q_norm = "self_attn.q_norm",
                             .k_norm = "self_attn.k_norm",
                             .moe = "block_sparse_moe",
                             .choice_bias = "e_score_correction_bias",
                             .expert_gate = "w1",
                             .expert_up = "w3",
                             .expert_down = "w2"};

constexpr TensorNames kGgufTensors =
    WithGgufChoiceBias(WithGgufQkNorm(WithGgufExperts(kGgufNames)));
constexpr auto kGgufKeys = JoinKeys(kGgufExpertKeys, {"expert_gating_func"});

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_RETURN_IF_ERROR(
      CheckName("scoring_func", config.moe.scoring_func, "sigmoid", MiniMaxM2Family()));
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, MiniMaxM2Family()));
  for (LayerSpec& layer : spec.layers) {
    layer.heads.qk_norm = RmsNormSpec(config);
    layer.heads.qk_norm_scope = QkNormScope::kWhole;
  }
  MoeSpec moe;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = config.moe.use_routing_bias;
  moe.renormalize = true;
  UseExperts(config, moe, &spec);
  return spec;
}

}  // namespace

const Family& MiniMaxM2Family() {
  static const Family kFamily{.name = "minimax_m2",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .names = kNames,
                              .gguf_architecture = "minimax-m2",
                              .gguf_names = kGgufTensors,
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
