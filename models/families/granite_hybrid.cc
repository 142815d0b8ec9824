// Granite 4: GraniteMoeHybridForCausalLM.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"GraniteMoeHybridForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"granitemoehybrid"};
constexpr absl::string_view kKeys[] = {"attention_bias",
                                       "attention_multiplier",
                                       "embedding_multiplier",
                                       "residual_multiplier",
                                       "logits_scaling",
                                       "layers_block_type",
                                       "position_embedding_type",
                                       "num_local_experts",
                                       "num_experts_per_tok",
                                       "shared_intermediate_size",
                                       "mamba_n_heads",
                                       "mamba_d_head",
                                       "mamba_n_groups",
                                       "mamba_d_state",
                                       "mamba_d_conv",
                                       "mamba_expand",
                                       "mamba_conv_bias",
                                       "time_step_limit"};
constexpr ConfigDefaults kDefaults{.num_experts = 8, .experts_per_token = 2};
constexpr LayerTypeName kLayerTypes[] = {{"mamba", LayerBranch::kRecurrent},
                                         {"attention", LayerBranch::kAttention},
                                         {"linear_attention", LayerBranch::kRecurrent},
                                         {"full_attention", LayerBranch::kAttention}};
// Models without experts have the shared MLP alone, so it is also their dense MLP.
constexpr TensorNames kNames{.in_zxbcdt = "mamba.in_proj",
                             .conv = "mamba.conv1d.weight",
                             .conv_bias = "mamba.conv1d.bias",
                             .a_log = "mamba.A_log",
                             .dt_bias = "mamba.dt_bias",
                             .skip = "mamba.D",
                             .gate_norm = "mamba.norm.weight",
                             .recurrent_out = "mamba.out_proj",
                             .gate_up = "shared_mlp.input_linear",
                             .down = "shared_mlp.output_linear",
                             .moe = "",
                             .router = "block_sparse_moe.router.layer",
                             .gate_up_stack = "block_sparse_moe.input_linear",
                             .down_stack = "block_sparse_moe.output_linear",
                             .shared = "shared_mlp",
                             .shared_mlp_gate_up = "input_linear",
                             .shared_mlp_down = "output_linear"};

constexpr TensorNames kGgufTensors =
    WithGgufMamba(WithGgufSharedExpert(WithGgufExperts(kGgufNames)));
constexpr auto kGgufKeys =
    JoinKeys(JoinKeys(kGgufExpertKeys,
                      {"expert_shared_feed_forward_length", "attention.scale", "embedding_scale",
                       "residual_scale", "logit_scale", "rope.scaling.finetuned"}),
             kGgufMambaKeys);

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, GraniteHybridFamily()));
  ApplyGraniteMultipliers(config, &spec);
  if (!config.has_rope) RemoveRope(&spec);
  MlpSpec shared = spec.layers[0].dense;
  shared.intermediate = config.shared_intermediate_size;
  if (config.moe.num_experts == 0) {
    for (LayerSpec& layer : spec.layers) layer.dense = shared;
  } else {
    MoeSpec moe;
    moe.score = RouterScore::kSoftmaxChosen;
    moe.shared = shared;
    UseExperts(config, moe, &spec);
  }
  // The norm is over all columns. Mamba's groups of B and C do not matter here.
  UseMamba(config, /*norm_groups=*/1, &spec);
  return spec;
}

}  // namespace

const Family& GraniteHybridFamily() {
  static const Family kFamily{.name = "granite_hybrid",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .layer_types = kLayerTypes,
                              .names = kNames,
                              .gguf_architecture = "granitehybrid",
                              .gguf_names = kGgufTensors,
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

}  // namespace quire::models
