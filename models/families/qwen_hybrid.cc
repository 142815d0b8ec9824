// Qwen3-Next, Qwen3.5 and its successors of the same class: three of four layers have linear
// attention by the gated delta rule, the others full attention with an output gate. Qwen3.5 exists
// with dense and with MoE layers, and its text model also inside a multimodal model.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitecturesNext[] = {"Qwen3NextForCausalLM"};
constexpr absl::string_view kModelTypesNext[] = {"qwen3_next"};
constexpr absl::string_view kArchitectures35[] = {"Qwen3_5ForCausalLM"};
constexpr absl::string_view kModelTypes35[] = {"qwen3_5_text"};
constexpr absl::string_view kArchitecturesMoe[] = {"Qwen3_5MoeForCausalLM"};
constexpr absl::string_view kModelTypesMoe[] = {"qwen3_5_moe_text"};
constexpr absl::string_view kVisionArchitectures35[] = {"Qwen3_5ForConditionalGeneration"};
constexpr absl::string_view kVisionModelTypes35[] = {"qwen3_5"};
constexpr absl::string_view kVisionArchitecturesMoe[] = {"Qwen3_5MoeForConditionalGeneration"};
constexpr absl::string_view kVisionModelTypesMoe[] = {"qwen3_5_moe"};

constexpr LayerTypeName kLayerTypes[] = {{"linear_attention", LayerBranch::kRecurrent},
                                         {"full_attention", LayerBranch::kAttention}};
constexpr absl::string_view kKeysNext[] = {
    "attention_bias",          "decoder_sparse_step",
    "full_attention_interval", "linear_conv_kernel_dim",
    "linear_key_head_dim",     "linear_num_key_heads",
    "linear_num_value_heads",  "linear_value_head_dim",
    "mlp_only_layers",         "moe_intermediate_size",
    "norm_topk_prob",          "num_experts",
    "num_experts_per_tok",     "num_local_experts",
    "partial_rotary_factor",   "shared_expert_intermediate_size"};
constexpr absl::string_view kKeys35[] = {"attention_bias",          "attn_output_gate",
                                         "full_attention_interval", "linear_conv_kernel_dim",
                                         "linear_key_head_dim",     "linear_num_key_heads",
                                         "linear_num_value_heads",  "linear_value_head_dim",
                                         "mrope_section",           "partial_rotary_factor"};
constexpr absl::string_view kKeysMoe[] = {
    "attention_bias",         "attn_output_gate",      "full_attention_interval",
    "linear_conv_kernel_dim", "linear_key_head_dim",   "linear_num_key_heads",
    "linear_num_value_heads", "linear_value_head_dim", "moe_intermediate_size",
    "mrope_section",          "num_experts",           "num_experts_per_tok",
    "num_local_experts",      "partial_rotary_factor", "shared_expert_intermediate_size"};

constexpr ConfigDefaults kDefaultsNext{.max_position_embeddings = 32768,
                                       .num_key_value_heads = 2,
                                       .head_dim = 256,
                                       .num_experts = 512,
                                       .experts_per_token = 10,
                                       .moe_intermediate_size = 512,
                                       .shared_expert_intermediate_size = 512,
                                       .partial_rotary_factor = 0.25,
                                       .norm_topk_prob = true};
constexpr ConfigDefaults kDefaults35{.max_position_embeddings = 32768,
                                     .num_key_value_heads = 4,
                                     .head_dim = 256,
                                     .partial_rotary_factor = 0.25};
// All layers are MoE layers, so config.json need not have intermediate_size. Its default makes the
// key optional and has no other effect.
constexpr ConfigDefaults kDefaultsMoe{.max_position_embeddings = 32768,
                                      .num_key_value_heads = 2,
                                      .head_dim = 256,
                                      .num_experts = 256,
                                      .experts_per_token = 8,
                                      .moe_intermediate_size = 512,
                                      .intermediate_size = 512,
                                      .shared_expert_intermediate_size = 512,
                                      .partial_rotary_factor = 0.25};

constexpr TensorNames NamesWithoutInputProjections() {
  TensorNames names;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.conv = "linear_attn.conv1d.weight";
  names.a_log = "linear_attn.A_log";
  names.dt_bias = "linear_attn.dt_bias";
  names.gate_norm = "linear_attn.norm.weight";
  names.recurrent_out = "linear_attn.out_proj";
  names.shared = "shared_expert";
  names.shared_gate = "shared_expert_gate";
  return names;
}

constexpr TensorNames NamesNext() {
  TensorNames names = NamesWithoutInputProjections();
  names.in_qkvz = "linear_attn.in_proj_qkvz";
  names.in_ba = "linear_attn.in_proj_ba";
  return names;
}

constexpr TensorNames Names35() {
  TensorNames names = NamesWithoutInputProjections();
  names.in_qkv = "linear_attn.in_proj_qkv";
  names.in_z = "linear_attn.in_proj_z";
  names.in_b = "linear_attn.in_proj_b";
  names.in_a = "linear_attn.in_proj_a";
  names.stacked_gate_up = "gate_up_proj";
  names.stacked_down = "down_proj";
  names.stacks_are_output_major = true;
  return names;
}

// Keys and names of GGUF files. Converters divide in_proj_qkvz of Qwen3-Next into two tensors.
constexpr auto kGgufKeysMoe =
    JoinKeys(kGgufMambaKeys, {"expert_count", "expert_used_count", "expert_feed_forward_length",
                              "expert_shared_feed_forward_length"});

constexpr TensorNames GgufNamesWithoutBetaAlpha() {
  TensorNames names = WithGgufQkNorm(WithGgufSharedExpert(WithGgufExperts(kGgufNames)));
  names.mlp_in = "post_attention_norm";
  names.in_qkv = "attn_qkv";
  names.in_z = "attn_gate";
  names.conv = "ssm_conv1d.weight";
  names.a_log = "ssm_a";
  names.dt_bias = "ssm_dt.bias";
  names.gate_norm = "ssm_norm.weight";
  names.recurrent_out = "ssm_out";
  names.shared_gate = "ffn_gate_inp_shexp";
  return names;
}

constexpr TensorNames GgufNamesNext() {
  TensorNames names = GgufNamesWithoutBetaAlpha();
  names.in_ba = "ssm_ba";
  return names;
}

constexpr TensorNames GgufNames35() {
  TensorNames names = GgufNamesWithoutBetaAlpha();
  names.in_b = "ssm_beta";
  names.in_a = "ssm_alpha";
  return names;
}

constexpr absl::string_view kVisionTensors[] = {"model.visual."};

constexpr TensorNames NamesInVisionModel() {
  TensorNames names = Names35();
  names.skipped = kVisionTensors;
  names.embedding = "model.language_model.embed_tokens";
  names.final_norm = "model.language_model.norm";
  names.layer_prefix = "model.language_model.layers.";
  return names;
}

RecurrentSpec GatedDeltaRule(const ModelConfig& config) {
  RecurrentSpec recurrent = config.hybrid.recurrent;
  recurrent.qk_l2_eps = 1e-6f;
  recurrent.norm_eps = config.rms_norm_eps;
  return recurrent;
}

// GGUF converters reorder the value heads of Qwen3.5 and later models, so that head h reads key
// head h % key_heads.
void TileKeyHeads(const ModelConfig& config, ModelSpec* spec) {
  if (!config.is_gguf) return;
  for (LayerSpec& layer : spec->layers) {
    RecurrentSpec& recurrent = layer.recurrent;
    recurrent.tiles_key_heads = recurrent.heads != recurrent.key_heads;
  }
}

// Norms multiply by 1 + weight, except the gated norm of recurrent layers. In GGUF files the
// stored weights already are these sums (RmsNormSpec).
absl::StatusOr<ModelSpec> HybridSpec(const ModelConfig& config, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, family));
  const NormSpec norm = RmsNormSpec(config, /*weight_offset=*/1);
  for (LayerSpec& layer : spec.layers) {
    layer.attn_in = norm;
    layer.mlp_in = norm;
    layer.heads.qk_norm = norm;
    layer.heads.output_gate = true;
  }
  spec.final_norm = norm;
  UseRecurrentLayers(config, GatedDeltaRule(config), &spec);
  return spec;
}

absl::StatusOr<ModelSpec> MoeSpecOf(const ModelConfig& config, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, HybridSpec(config, family));
  MoeSpec moe;
  moe.score = RouterScore::kSoftmaxAll;
  moe.renormalize = config.moe.norm_topk_prob;
  moe.shared = spec.layers[0].dense;
  moe.shared->intermediate = config.moe.shared_expert_intermediate_size;
  moe.shared_gate = true;
  UseExperts(config, moe, &spec);
  return spec;
}

absl::StatusOr<ModelSpec> BuildNext(const ModelConfig& config) {
  return MoeSpecOf(config, Qwen3NextFamily());
}

absl::StatusOr<ModelSpec> Build35(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, HybridSpec(config, Qwen35Family()));
  TileKeyHeads(config, &spec);
  return spec;
}

absl::StatusOr<ModelSpec> BuildMoe(const ModelConfig& config) {
  ModelConfig renormalizing = config;
  renormalizing.moe.norm_topk_prob = true;  // the family has no norm_topk_prob key
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, MoeSpecOf(renormalizing, Qwen35MoeFamily()));
  TileKeyHeads(config, &spec);
  return spec;
}

}  // namespace

const Family& Qwen3NextFamily() {
  static const Family kFamily{.name = "qwen3_next",
                              .architectures = kArchitecturesNext,
                              .model_types = kModelTypesNext,
                              .defaults = kDefaultsNext,
                              .keys = kKeysNext,
                              .layer_types = kLayerTypes,
                              .names = NamesNext(),
                              .gguf_architecture = "qwen3next",
                              .gguf_names = GgufNamesNext(),
                              .gguf_keys = kGgufKeysMoe,
                              .build_spec = BuildNext};
  return kFamily;
}

const Family& Qwen35Family() {
  static const Family kFamily{.name = "qwen3_5",
                              .architectures = kArchitectures35,
                              .model_types = kModelTypes35,
                              .defaults = kDefaults35,
                              .keys = kKeys35,
                              .layer_types = kLayerTypes,
                              .names = Names35(),
                              .gguf_architecture = "qwen35",
                              .gguf_names = GgufNames35(),
                              .gguf_keys = kGgufMambaKeys,
                              .build_spec = Build35};
  return kFamily;
}

const Family& Qwen35MoeFamily() {
  static const Family kFamily{.name = "qwen3_5_moe",
                              .architectures = kArchitecturesMoe,
                              .model_types = kModelTypesMoe,
                              .defaults = kDefaultsMoe,
                              .keys = kKeysMoe,
                              .layer_types = kLayerTypes,
                              .names = Names35(),
                              .gguf_architecture = "qwen35moe",
                              .gguf_names = GgufNames35(),
                              .gguf_keys = kGgufKeysMoe,
                              .build_spec = BuildMoe};
  return kFamily;
}

const Family& Qwen35VisionFamily() {
  static const Family kFamily =
      InMultimodalModel(Qwen35Family(), "qwen3_5_vision", kVisionArchitectures35,
                        kVisionModelTypes35, NamesInVisionModel());
  return kFamily;
}

const Family& Qwen35MoeVisionFamily() {
  static const Family kFamily =
      InMultimodalModel(Qwen35MoeFamily(), "qwen3_5_moe_vision", kVisionArchitecturesMoe,
                        kVisionModelTypesMoe, NamesInVisionModel());
  return kFamily;
}

}  // namespace quire::models
