// Llama 4, text only: Scout and Maverick, alone or inside the multimodal model.
//
// RMS pre-norms. Layers with rope attend within chunks and normalize q and k without weights after
// the rotation of neighboring columns. The other layers see all tokens and scale queries by their
// position. MoE layers have a shared expert. The sigmoid of an expert's router logit multiplies the
// input of the expert. Source: modeling_llama4.py of Hugging Face transformers.

#include "absl/status/statusor.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kArchitectures[] = {"Llama4ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"llama4_text"};
constexpr absl::string_view kVisionArchitectures[] = {"Llama4ForConditionalGeneration"};
constexpr absl::string_view kVisionModelTypes[] = {"llama4"};
constexpr absl::string_view kVisionPrefixes[] = {"vision_model.", "multi_modal_projector."};
constexpr absl::string_view kKeys[] = {"attention_bias",
                                       "attention_chunk_size",
                                       "attn_scale",
                                       "attn_temperature_tuning",
                                       "floor_scale",
                                       "use_qk_norm",
                                       "no_rope_layers",
                                       "no_rope_layer_interval",
                                       "num_local_experts",
                                       "num_experts",
                                       "n_routed_experts",
                                       "num_experts_per_tok",
                                       "experts_per_token",
                                       "intermediate_size_mlp",
                                       "interleave_moe_layer_step",
                                       "moe_layers"};
constexpr ConfigDefaults kDefaults{.rope_theta = 500000,
                                   .rms_norm_eps = 1e-5,
                                   .max_position_embeddings = 131072,
                                   .vocab_size = 202048,
                                   .num_attention_heads = 40,
                                   .num_key_value_heads = 8,
                                   .head_dim = 128,
                                   .attention_chunk_size = 8192,
                                   .floor_scale = 8192,
                                   .attn_scale = 0.1,
                                   .intermediate_size_mlp = 16384,
                                   .num_experts = 16,
                                   .experts_per_token = 1};
constexpr TensorNames kNames{.gate = "feed_forward.gate_proj",
                             .up = "feed_forward.up_proj",
                             .down = "feed_forward.down_proj",
                             .moe = "feed_forward",
                             .router = "router",
                             .stacked_gate_up = "gate_up_proj",
                             .stacked_down = "down_proj",
                             .stacked_in_halves = true,
                             .shared = "shared_expert"};
constexpr TensorNames kGgufTensors = WithGgufSharedExpert(WithGgufExperts(kGgufNames));
constexpr absl::string_view kGgufKeys[] = {"expert_count", "expert_used_count",
                                           "expert_feed_forward_length",
                                           "interleave_moe_layer_step", "attention.sliding_window"};
constexpr TensorNames NamesInVisionModel() {
  TensorNames names = kNames;
  names.skipped = kVisionPrefixes;
  names.embedding = "language_model.model.embed_tokens";
  names.final_norm = "language_model.model.norm";
  names.head = "language_model.lm_head";
  names.layer_prefix = "language_model.model.layers.";
  return names;
}

void SetAttention(const ModelConfig& config, std::size_t index, AttentionSpec* heads) {
  heads->rope_style = RopeStyle::kInterleaved;
  heads->chunk = config.chunks[index];
  if (heads->rope >= 0 && config.use_qk_norm) {
    heads->qk_norm = RmsNormSpec(config);
    heads->qk_norm.has_weight = false;
    heads->qk_norm_after_rope = true;
  }
  if (heads->rope < 0 && config.attn_temperature_tuning) {
    heads->q_position_scale = {
        .beta = static_cast<float>(config.attn_scale), .period = config.floor_scale, .offset = 1};
  }
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, FamilyNamed(config.family)));
  MoeSpec moe;
  moe.score = RouterScore::kSigmoidChosen;
  moe.weight_on_input = true;
  moe.shared = spec.layers[0].dense;  // as wide as an expert
  UseExperts(config, moe, &spec);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    SetAttention(config, i, &layer.heads);
    if (layer.mlp == MlpKind::kDense) layer.dense.intermediate = config.intermediate_size_mlp;
  }
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace

const Family& Llama4Family() {
  static const Family kFamily{.name = "llama4",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .keys = kKeys,
                              .may_omit_qk_norm = true,
                              .names = kNames,
                              .gguf_architecture = "llama4",
                              .gguf_names = kGgufTensors,
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

const Family& Llama4VisionFamily() {
  static const Family kFamily =
      InMultimodalModel(Llama4Family(), "llama4_vision", kVisionArchitectures, kVisionModelTypes,
                        NamesInVisionModel());
  return kFamily;
}

}  // namespace quire::models
