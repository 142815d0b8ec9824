#include "models/families/deepseek.h"

#include <cmath>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures2[] = {"DeepseekV2ForCausalLM"};
constexpr absl::string_view kModelTypes2[] = {"deepseek_v2"};
constexpr absl::string_view kArchitectures3[] = {"DeepseekV3ForCausalLM"};
constexpr absl::string_view kModelTypes3[] = {"deepseek_v3"};
constexpr absl::string_view kArchitectures32[] = {"DeepseekV32ForCausalLM"};
constexpr absl::string_view kModelTypes32[] = {"deepseek_v32"};
constexpr auto kKeys32 = JoinKeys(
    kDeepseekKeys, {"index_topk", "index_n_heads", "index_head_dim", "indexer_rope_interleave"});
constexpr ConfigDefaults kDefaults2{.num_experts = 64,
                                    .experts_per_token = 6,
                                    .moe_intermediate_size = 1407,
                                    .n_shared_experts = 2};
constexpr ConfigDefaults kDefaults3{.max_position_embeddings = 4096,
                                    .num_experts = 256,
                                    .experts_per_token = 8,
                                    .moe_intermediate_size = 2048,
                                    .norm_topk_prob = true,
                                    .first_k_dense_replace = 3,
                                    .n_shared_experts = 1,
                                    .n_group = 8,
                                    .topk_group = 4,
                                    .routed_scaling_factor = 2.5};
constexpr ConfigDefaults kDefaults32 = [] {
  ConfigDefaults defaults = kDefaults3;
  defaults.index_n_heads = 64;
  return defaults;
}();
constexpr absl::string_view kArchitecturesOfGlm[] = {"Glm4MoeLiteForCausalLM"};
constexpr absl::string_view kModelTypesOfGlm[] = {"glm4_moe_lite"};
constexpr ConfigDefaults kDefaultsOfGlm{.rms_norm_eps = 1e-5,
                                        .max_position_embeddings = 202752,
                                        .num_experts = 64,
                                        .experts_per_token = 4,
                                        .moe_intermediate_size = 1536,
                                        .norm_topk_prob = true,
                                        .first_k_dense_replace = 1,
                                        .n_shared_experts = 1,
                                        .routed_scaling_factor = 1.8};
constexpr TensorNames kNames{.choice_bias = "gate.e_score_correction_bias",
                             .shared = "shared_experts"};

// GGUF files of GLM-4.7-Flash name the architecture deepseek2 and have a choice bias, so they load
// as deepseek_v3. Glm4MoeLiteFamily therefore has no GGUF names.
constexpr TensorNames kGgufNames2 = WithGgufMla(WithGgufSharedExpert(WithGgufExperts(kGgufNames)));
constexpr TensorNames kGgufNames3 = WithGgufChoiceBias(kGgufNames2);

// Returns the factor that yarn with mscale_all_dim applies to attention scores.
double ScoreFactor(const RopeConfig& rope) {
  const double all_dim = rope.mscale_all_dim.value_or(0);
  if (rope.kind == RopeKind::kDefault || all_dim == 0 || rope.factor <= 1) return 1;
  const double mscale = 0.1 * all_dim * std::log(rope.factor) + 1;
  return mscale * mscale;
}

MlaSpec BuildMla(const ModelConfig& config) {
  MlaSpec mla = UnrotatedMla(config);
  mla.rope = 0;
  mla.rope_style = config.mla.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalf;
  const double columns = mla.nope_size + mla.rope_size;
  mla.scale = static_cast<float>(ScoreFactor(config.rope) / std::sqrt(columns));
  mla.qa_bias = config.attention_bias;
  mla.kva_bias = config.attention_bias;
  mla.o_bias = config.attention_bias;
  return mla;
}

// Sets the IndexSpec of all layers. A layer without an indexer uses the selection of the last
// earlier layer that has one.
void UseIndex(const IndexConfig& config, ModelSpec* spec) {
  if (config.topk == 0) return;
  IndexSpec index{
      .heads = config.n_heads,
      .size = config.head_dim,
      .topk = config.topk,
      .rope_style = config.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalf};
  std::int32_t last = -1;
  for (std::size_t i = 0; i < spec->layers.size(); ++i) {
    index.from_layer = config.has_indexer[i] ? -1 : last;
    if (config.has_indexer[i]) last = static_cast<std::int32_t>(i);
    spec->layers[i].mla.index = index;
  }
}

absl::StatusOr<ModelSpec> BuildSpec2(const ModelConfig& config) {
  const Family& family = DeepseekV2Family();
  QUIRE_RETURN_IF_ERROR(CheckName("scoring_func", config.moe.scoring_func, "softmax", family));
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxAll;
  if (config.moe.topk_method == "group_limited_greedy") {
    moe.groups = config.moe.n_group;
    moe.groups_kept = config.moe.topk_group;
    moe.group_score = GroupScore::kMax;
  } else if (!config.moe.topk_method.empty() && config.moe.topk_method != "greedy") {
    return UnsupportedName("topk_method", config.moe.topk_method, "greedy, group_limited_greedy",
                           family);
  }
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, family));
  moe.weight_scale = static_cast<float>(config.moe.routed_scaling_factor);
  moe.shared = SharedExperts(config, spec.layers[0].dense);
  UseExperts(config, moe, &spec);
  UseMla(BuildMla(config), &spec);
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> DeepseekV3Spec(const ModelConfig& config) {
  const Family& family = FamilyNamed(config.family);
  QUIRE_RETURN_IF_ERROR(CheckName("scoring_func", config.moe.scoring_func, "sigmoid", family));
  QUIRE_RETURN_IF_ERROR(CheckName("topk_method", config.moe.topk_method, "noaux_tc", family));
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, family));
  UseExperts(config, SigmoidRouting(config, spec.layers[0].dense), &spec);
  UseMla(BuildMla(config), &spec);
  UseIndex(config.index, &spec);
  return spec;
}

const Family& DeepseekV2Family() {
  static const Family kFamily{.name = "deepseek_v2",
                              .architectures = kArchitectures2,
                              .model_types = kModelTypes2,
                              .defaults = kDefaults2,
                              .keys = kDeepseekKeys,
                              .names = kNames,
                              .gguf_architecture = "deepseek2",
                              .gguf_names = kGgufNames2,
                              .gguf_keys = kGgufMlaKeys,
                              .build_spec = BuildSpec2};
  return kFamily;
}

const Family& DeepseekV3Family() {
  static const Family kFamily{.name = "deepseek_v3",
                              .architectures = kArchitectures3,
                              .model_types = kModelTypes3,
                              .defaults = kDefaults3,
                              .keys = kDeepseekKeys,
                              .names = kNames,
                              .gguf_architecture = "deepseek2",
                              .gguf_names = kGgufNames3,
                              .gguf_keys = kGgufMlaKeys,
                              .build_spec = DeepseekV3Spec};
  return kFamily;
}

const Family& DeepseekV32Family() {
  static const Family kFamily{.name = "deepseek_v32",
                              .architectures = kArchitectures32,
                              .model_types = kModelTypes32,
                              .defaults = kDefaults32,
                              .keys = kKeys32,
                              .names = kNames,
                              .gguf_architecture = "deepseek32",
                              .gguf_names = WithGgufIndexer(kGgufNames3),
                              .gguf_keys = kGgufIndexKeys,
                              .build_spec = DeepseekV3Spec};
  return kFamily;
}

const Family& Glm4MoeLiteFamily() {
  static const Family kFamily{.name = "glm4_moe_lite",
                              .architectures = kArchitecturesOfGlm,
                              .model_types = kModelTypesOfGlm,
                              .defaults = kDefaultsOfGlm,
                              .keys = kDeepseekKeys,
                              .names = kNames,
                              .build_spec = DeepseekV3Spec};
  return kFamily;
}

}  // namespace quire::models
