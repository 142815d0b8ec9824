// Nemotron-H and Nemotron 3: NemotronHForCausalLM.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"NemotronHForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"nemotron_h"};
constexpr absl::string_view kKeys[] = {"attention_bias",
                                       "mlp_bias",
                                       "mlp_hidden_act",
                                       "layer_norm_epsilon",
                                       "layers_block_type",
                                       "hybrid_override_pattern",
                                       "n_routed_experts",
                                       "n_shared_experts",
                                       "num_experts_per_tok",
                                       "moe_intermediate_size",
                                       "moe_shared_expert_intermediate_size",
                                       "moe_latent_size",
                                       "n_group",
                                       "topk_group",
                                       "norm_topk_prob",
                                       "routed_scaling_factor",
                                       "num_nextn_predict_layers",
                                       "mamba_num_heads",
                                       "mamba_head_dim",
                                       "n_groups",
                                       "ssm_state_size",
                                       "conv_kernel",
                                       "use_conv_bias",
                                       "time_step_limit"};
constexpr absl::string_view kActivations[] = {"relu2"};
constexpr ConfigDefaults kDefaults{.rms_norm_eps = 1e-5,
                                   .hidden_act = "relu2",
                                   .max_position_embeddings = 4096,
                                   .num_key_value_heads = 8,
                                   .head_dim = 128,
                                   .num_experts = 8,
                                   .experts_per_token = 2,
                                   .moe_intermediate_size = 7688,
                                   .norm_topk_prob = true,
                                   .n_shared_experts = 1};
constexpr LayerTypeName kLayerTypes[] = {{"mamba", LayerBranch::kRecurrent},
                                         {"attention", LayerBranch::kAttention},
                                         {"mlp", LayerBranch::kMlp},
                                         {"moe", LayerBranch::kExperts},
                                         {"linear_attention", LayerBranch::kRecurrent},
                                         {"full_attention", LayerBranch::kAttention}};
// A layer has one branch, the mixer, so the names of branches may coincide.
constexpr TensorNames kNames{.embedding = "backbone.embeddings",
                             .final_norm = "backbone.norm_f",
                             .layer_prefix = "backbone.layers.",
                             .attn_in = "norm",
                             .mlp_in = "norm",
                             .q = "mixer.q_proj",
                             .k = "mixer.k_proj",
                             .v = "mixer.v_proj",
                             .o = "mixer.o_proj",
                             .in_zxbcdt = "mixer.in_proj",
                             .conv = "mixer.conv1d.weight",
                             .conv_bias = "mixer.conv1d.bias",
                             .a_log = "mixer.A_log",
                             .dt_bias = "mixer.dt_bias",
                             .skip = "mixer.D",
                             .gate_norm = "mixer.norm.weight",
                             .recurrent_out = "mixer.out_proj",
                             .up = "mixer.up_proj",
                             .down = "mixer.down_proj",
                             .moe = "mixer",
                             .choice_bias = "gate.e_score_correction_bias",
                             .latent_in = "fc1_latent_proj",
                             .latent_out = "fc2_latent_proj",
                             .shared = "shared_experts"};

constexpr TensorNames GgufNames() {
  TensorNames names =
      WithGgufChoiceBias(WithGgufMamba(WithGgufSharedExpert(WithGgufExperts(kGgufNames))));
  names.mlp_in = names.attn_in;
  names.latent_in = "ffn_latent_down";
  names.latent_out = "ffn_latent_up";
  return names;
}
constexpr auto kGgufKeys =
    JoinKeys(JoinKeys(kGgufExpertKeys,
                      {"expert_shared_count", "expert_shared_feed_forward_length",
                       "expert_group_count", "expert_group_used_count", "expert_weights_norm",
                       "expert_weights_scale", "moe_latent_size", "rope.scaling.finetuned"}),
             kGgufMambaKeys);

MoeSpec BuildMoe(const ModelConfig& config, const MlpSpec& mlp) {
  MoeSpec moe = SigmoidRouting(config, mlp);
  moe.latent = config.moe.latent_size;
  moe.shared = mlp;
  moe.shared->intermediate = config.moe.shared_expert_intermediate_size;
  return moe;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  // transformers builds one shared expert per MoE layer, so other values of n_shared_experts are
  // refused.
  if (config.moe.n_shared_experts != 1) {
    return absl::UnimplementedError(absl::StrCat("n_shared_experts ", config.moe.n_shared_experts,
                                                 " is not supported by nemotron_h (supported: 1)"));
  }
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, NemotronHFamily()));
  RemoveRope(&spec);
  for (LayerSpec& layer : spec.layers) {
    layer.dense.gated = false;
    layer.dense.gate_bias = false;
  }
  ModelConfig with_experts = config;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    with_experts.moe.sparse_layers[i] = config.hybrid.layers[i] == LayerBranch::kExperts;
  }
  UseExperts(with_experts, BuildMoe(config, spec.layers[0].dense), &spec);
  UseMamba(config, /*norm_groups=*/config.hybrid.recurrent.key_heads, &spec);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const LayerBranch branch = config.hybrid.layers[i];
    if (branch == LayerBranch::kMlp || branch == LayerBranch::kExperts) {
      layer.attention = AttentionKind::kNone;
      layer.attn_in = {};
      layer.heads = {};
    } else {
      layer.mlp = MlpKind::kNone;
      layer.mlp_in = {};
      layer.dense = {};
    }
  }
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace

const Family& NemotronHFamily() {
  static const Family kFamily{.name = "nemotron_h",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .activations = kActivations,
                              .keys = kKeys,
                              .layer_types = kLayerTypes,
                              .names = kNames,
                              .gguf_architecture = "nemotron_h",
                              .gguf_moe_architecture = "nemotron_h_moe",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
