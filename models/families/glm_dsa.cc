// GLM-5, 5.1 and 5.2.
//
// DeepSeek-V3.2 with other defaults: experts are not grouped, the indexer has interleaved rope, and
// layers may attend to the tokens that the indexer of an earlier layer selected. The norms of
// latents and of index keys have epsilon 1e-6, other norms rms_norm_eps. Source:
// modeling_glm_moe_dsa.py of Hugging Face transformers.

#include "models/families/common.h"
#include "models/families/deepseek.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"GlmMoeDsaForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"glm_moe_dsa"};
// qk_head_dim is accepted but not read: it equals qk_nope_head_dim + qk_rope_head_dim.
constexpr auto kKeys =
    JoinKeys(kDeepseekKeys, {"qk_head_dim", "index_topk", "index_n_heads", "index_head_dim",
                             "index_topk_freq", "index_topk_pattern", "index_skip_topk_offset",
                             "indexer_types", "indexer_rope_interleave"});
constexpr ConfigDefaults kDefaults{.rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 202752,
                                   .num_experts = 256,
                                   .experts_per_token = 8,
                                   .moe_intermediate_size = 2048,
                                   .norm_topk_prob = true,
                                   .first_k_dense_replace = 3,
                                   .n_shared_experts = 1,
                                   .routed_scaling_factor = 2.5,
                                   .index_n_heads = 32,
                                   .indexer_rope_interleave = true};
constexpr TensorNames kNames{.choice_bias = "gate.e_score_correction_bias",
                             .shared = "shared_experts"};

constexpr TensorNames kGgufTensors = WithGgufIndexer(
    WithGgufChoiceBias(WithGgufMla(WithGgufSharedExpert(WithGgufExperts(kGgufNames)))));

}  // namespace

const Family& GlmMoeDsaFamily() {
  static const Family kFamily{.name = "glm_moe_dsa",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .names = kNames,
                              .gguf_architecture = "glm-dsa",
                              .gguf_names = kGgufTensors,
                              .gguf_keys = kGgufIndexKeys,
                              .build_spec = DeepseekV3Spec};
  return kFamily;
}

}  // namespace quire::models
