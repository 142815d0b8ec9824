#include "models/families/deepseek.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures2[] = {"DeepseekV2ForCausalLM"};
constexpr absl::string_view kModelTypes2[] = {"deepseek_v2"};
constexpr absl::string_view kArchitectures3[] = {"DeepseekV3ForCausalLM"};
constexpr absl::string_view kModelTypes3[] = {"deepseek_v3"};
// Layers for multi-token prediction (num_nextn_predict_layers) follow the last layer and are
// skipped. V2 never reads norm_topk_prob.
constexpr absl::string_view kKeys[] = {"attention_bias",    "q_lora_rank",
                                       "kv_lora_rank",      "qk_nope_head_dim",
                                       "qk_rope_head_dim",  "v_head_dim",
                                       "rope_interleave",   "n_routed_experts",
                                       "num_experts",       "num_local_experts",
                                       "n_shared_experts",  "num_experts_per_tok",
                                       "experts_per_token", "moe_intermediate_size",
                                       "n_group",           "topk_group",
                                       "topk_method",       "scoring_func",
                                       "norm_topk_prob",    "routed_scaling_factor",
                                       "moe_layer_freq",    "first_k_dense_replace",
                                       "mlp_layer_types",   "num_nextn_predict_layers",
                                       "num_mtp_layers"};
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
constexpr TensorNames kNames{.choice_bias = "gate.e_score_correction_bias",
                             .shared = "shared_experts"};

// Returns the factor that yarn with mscale_all_dim applies to attention scores.
double ScoreFactor(const RopeConfig& rope) {
  const double all_dim = rope.mscale_all_dim.value_or(0);
  if (rope.kind == RopeKind::kDefault || all_dim == 0 || rope.factor <= 1) return 1;
  const double mscale = 0.1 * all_dim * std::log(rope.factor) + 1;
  return mscale * mscale;
}

MlaSpec BuildMla(const ModelConfig& config) {
  MlaSpec mla;
  mla.num_heads = config.num_attention_heads;
  mla.q_lora_rank = config.mla.q_lora_rank;
  mla.kv_lora_rank = config.mla.kv_lora_rank;
  mla.nope_size = config.mla.qk_nope_head_dim;
  mla.rope_size = config.mla.qk_rope_head_dim;
  mla.v_size = config.mla.v_head_dim;
  mla.rope = 0;
  mla.rope_style = config.mla.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalf;
  const double columns = mla.nope_size + mla.rope_size;
  mla.scale = static_cast<float>(ScoreFactor(config.rope) / std::sqrt(columns));
  mla.qa_bias = config.attention_bias;
  mla.kva_bias = config.attention_bias;
  mla.o_bias = config.attention_bias;
  return mla;
}

absl::Status Unsupported(absl::string_view key, absl::string_view value, absl::string_view family,
                         absl::string_view supported) {
  return absl::UnimplementedError(absl::StrCat(key, " \"", value, "\" is not supported by ", family,
                                               " (supported: ", supported, ")"));
}

// Builds the layers of V2 and V3. `moe` has the routing of experts.
absl::StatusOr<ModelSpec> Build(const ModelConfig& config, const Family& family, MoeSpec moe) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, family));
  moe.weight_scale = static_cast<float>(config.moe.routed_scaling_factor);
  if (config.moe.n_shared_experts > 0) {
    MlpSpec shared = spec.layers[0].dense;
    shared.intermediate = config.moe.intermediate_size * config.moe.n_shared_experts;
    moe.shared = shared;
  }
  UseExperts(config, moe, &spec);
  for (LayerSpec& layer : spec.layers) {
    layer.attention = AttentionKind::kMla;
    layer.heads = AttentionSpec{};
    layer.mla = BuildMla(config);
  }
  AssignCacheGroups(&spec);
  return spec;
}

absl::StatusOr<ModelSpec> BuildSpec2(const ModelConfig& config) {
  constexpr absl::string_view kName = "deepseek_v2";
  if (!config.moe.scoring_func.empty() && config.moe.scoring_func != "softmax") {
    return Unsupported("scoring_func", config.moe.scoring_func, kName, "softmax");
  }
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxAll;
  if (config.moe.topk_method == "group_limited_greedy") {
    moe.groups = config.moe.n_group;
    moe.groups_kept = config.moe.topk_group;
    moe.group_score = GroupScore::kMax;
  } else if (!config.moe.topk_method.empty() && config.moe.topk_method != "greedy") {
    return Unsupported("topk_method", config.moe.topk_method, kName,
                       "greedy, group_limited_greedy");
  }
  return Build(config, DeepseekV2Family(), moe);
}

absl::StatusOr<ModelSpec> BuildSpec3(const ModelConfig& config) {
  constexpr absl::string_view kName = "deepseek_v3";
  if (!config.moe.scoring_func.empty() && config.moe.scoring_func != "sigmoid") {
    return Unsupported("scoring_func", config.moe.scoring_func, kName, "sigmoid");
  }
  if (!config.moe.topk_method.empty() && config.moe.topk_method != "noaux_tc") {
    return Unsupported("topk_method", config.moe.topk_method, kName, "noaux_tc");
  }
  MoeSpec moe;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.groups = config.moe.n_group;
  moe.groups_kept = config.moe.topk_group;
  moe.group_score = GroupScore::kTop2Sum;
  moe.renormalize = config.moe.norm_topk_prob;
  moe.renorm_eps = 1e-20f;
  return Build(config, DeepseekV3Family(), moe);
}

}  // namespace

const Family& DeepseekV2Family() {
  static const Family kFamily{.name = "deepseek_v2",
                              .architectures = kArchitectures2,
                              .model_types = kModelTypes2,
                              .defaults = kDefaults2,
                              .keys = kKeys,
                              .names = kNames,
                              .gguf_architecture = "",
                              .gguf_names = {},
                              .build_spec = BuildSpec2};
  return kFamily;
}

const Family& DeepseekV3Family() {
  static const Family kFamily{.name = "deepseek_v3",
                              .architectures = kArchitectures3,
                              .model_types = kModelTypes3,
                              .defaults = kDefaults3,
                              .keys = kKeys,
                              .names = kNames,
                              .gguf_architecture = "",
                              .gguf_names = {},
                              .build_spec = BuildSpec3};
  return kFamily;
}

}  // namespace quire::models
