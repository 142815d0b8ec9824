// Mixtral 8x7B and 8x22B.
//
// The Llama architecture with an MoE instead of every MLP. Routing is a softmax over all experts.
// The best num_experts_per_tok are chosen, and their weights are divided by their sum. Expert
// tensors are w1 (gate), w3 (up) and w2 (down). Source: modeling_mixtral.py of Hugging Face
// transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"MixtralForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"mixtral"};
constexpr absl::string_view kKeys[] = {"num_local_experts", "num_experts",
                                       "n_routed_experts",  "num_experts_per_tok",
                                       "experts_per_token", "sliding_window"};
constexpr ConfigDefaults kDefaults{.rope_theta = 1e6,
                                   .rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 131072,
                                   .num_key_value_heads = 8,
                                   .num_experts = 8,
                                   .experts_per_token = 2};
// transformers 5 names the block mlp in memory and saves it as block_sparse_moe.
constexpr TensorNames kNames{.moe = "block_sparse_moe",
                             .moe_alias = "mlp",
                             .expert_gate = "w1",
                             .expert_up = "w3",
                             .expert_down = "w2"};

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, MixtralFamily()));
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxAll;
  moe.renormalize = true;
  UseExperts(config, moe, &spec);
  return spec;
}

}  // namespace

const Family& MixtralFamily() {
  static const Family kFamily{.name = "mixtral",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .windows = WindowRule::kAll,
                              .names = kNames,
                              .gguf_architecture = "llama",
                              .gguf_names = WithGgufExperts(kGgufNames),
                              .gguf_keys = kGgufExpertKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
