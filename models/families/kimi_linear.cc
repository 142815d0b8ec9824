// Kimi-Linear: KimiLinearForCausalLM.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"KimiLinearForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"kimi_linear"};
constexpr absl::string_view kKeys[] = {"q_lora_rank",
                                       "kv_lora_rank",
                                       "qk_nope_head_dim",
                                       "qk_rope_head_dim",
                                       "v_head_dim",
                                       "mla_use_nope",
                                       "model_max_length",
                                       "linear_attn_config",
                                       "num_experts",
                                       "num_local_experts",
                                       "num_experts_per_token",
                                       "num_shared_experts",
                                       "moe_intermediate_size",
                                       "moe_renormalize",
                                       "moe_router_activation_func",
                                       "num_expert_group",
                                       "topk_group",
                                       "routed_scaling_factor",
                                       "moe_layer_freq",
                                       "first_k_dense_replace",
                                       "mlp_layer_types",
                                       "num_nextn_predict_layers"};
constexpr ConfigDefaults kDefaults{.rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 1048576,
                                   .num_experts = 256,
                                   .experts_per_token = 8,
                                   .moe_intermediate_size = 1024,
                                   .norm_topk_prob = true,
                                   .first_k_dense_replace = 1,
                                   .n_shared_experts = 1,
                                   .routed_scaling_factor = 2.446};
constexpr LayerTypeName kLayerTypes[] = {{"linear_attention", LayerBranch::kRecurrent},
                                         {"full_attention", LayerBranch::kAttention}};
// transformers 5 saves the dense MLP under the name of the experts' block, block_sparse_moe.
constexpr TensorNames kNames{.in_q = "self_attn.q_proj",
                             .in_k = "self_attn.k_proj",
                             .in_v = "self_attn.v_proj",
                             .in_gate_rank = "self_attn.g_a_proj",
                             .in_b = "self_attn.b_proj",
                             .in_decay_rank = "self_attn.f_a_proj",
                             .gate_of_rank = "self_attn.g_b_proj",
                             .decay_of_rank = "self_attn.f_b_proj",
                             .conv_q = "self_attn.q_conv1d.weight",
                             .conv_k = "self_attn.k_conv1d.weight",
                             .conv_v = "self_attn.v_conv1d.weight",
                             .a_log = "self_attn.A_log",
                             .dt_bias = "self_attn.dt_bias",
                             .gate_norm = "self_attn.o_norm.weight",
                             .recurrent_out = "self_attn.o_proj",
                             .gate_alias = "block_sparse_moe.gate_proj",
                             .up_alias = "block_sparse_moe.up_proj",
                             .down_alias = "block_sparse_moe.down_proj",
                             .moe = "block_sparse_moe",
                             .choice_bias = "gate.e_score_correction_bias",
                             .expert_gate = "w1",
                             .expert_up = "w3",
                             .expert_down = "w2",
                             .shared = "shared_experts"};

constexpr TensorNames GgufNames() {
  TensorNames names =
      WithGgufChoiceBias(WithGgufMla(WithGgufSharedExpert(WithGgufExperts(kGgufNames))));
  names.in_q = "attn_q";
  names.in_k = "attn_k";
  names.in_v = "attn_v";
  names.in_gate_rank = "ssm_g_a";
  names.in_b = "ssm_beta";
  names.in_decay_rank = "ssm_f_a";
  names.gate_of_rank = "ssm_g_b";
  names.decay_of_rank = "ssm_f_b";
  names.conv_q = "ssm_conv1d_q.weight";
  names.conv_k = "ssm_conv1d_k.weight";
  names.conv_v = "ssm_conv1d_v.weight";
  names.a_log = "ssm_a";
  names.dt_bias = "ssm_dt.bias";
  names.gate_norm = "ssm_norm.weight";
  names.recurrent_out = "attn_output";
  return names;
}
constexpr auto kGgufKeys = JoinKeys(
    kGgufExpertKeys, {"expert_shared_count", "expert_group_count", "expert_group_used_count",
                      "expert_weights_scale", "expert_gating_func", "leading_dense_block_count",
                      "attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length_mla",
                      "attention.value_length_mla", "ssm.conv_kernel", "kda.head_dim"});

// The gated delta rule with a decay for each channel and gates of low rank.
RecurrentSpec BuildKda(const ModelConfig& config) {
  RecurrentSpec kda = config.hybrid.recurrent;
  kda.decay = DecayKind::kPerChannel;
  kda.qk_l2_eps = 1e-6f;
  kda.gate = RecurrentGate::kNormThenSigmoid;
  kda.norm_eps = config.rms_norm_eps;
  kda.decay_rank = kda.value_size;
  kda.gate_rank = kda.value_size;
  return kda;
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_RETURN_IF_ERROR(CheckName("moe_router_activation_func", config.moe.scoring_func, "sigmoid",
                                  KimiLinearFamily()));
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, KimiLinearFamily()));
  RemoveRope(&spec);
  UseExperts(config, SigmoidRouting(config, spec.layers[0].dense), &spec);
  UseMla(UnrotatedMla(config), &spec);
  UseRecurrentLayers(config, BuildKda(config), &spec);
  return spec;
}

}  // namespace

const Family& KimiLinearFamily() {
  static const Family kFamily{.name = "kimi_linear",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .layer_types = kLayerTypes,
                              .names = kNames,
                              .gguf_architecture = "kimi-linear",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
