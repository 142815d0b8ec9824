// Gemma 4: the text model, alone or inside a model with vision and audio towers.
//
// Norms multiply by the weight, not by 1 + weight as in Gemma 3. Heads of q and k are normalized
// with weights, those of v without, and scores are not scaled. Windowed layers and full layers
// differ in head size, KV heads and rope table. The table of full layers rotates a part of the
// pairs. In full layers v may be the projected k. The last layers may read K and V of earlier ones.
// A stored factor multiplies the output of a layer. E models (E2B, E4B) have inputs per layer
// (PerLayerInputSpec). MoE models have a dense MLP beside the experts.
// Source: modeling_gemma4.py of Hugging Face transformers.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/families/common.h"

namespace quire::models {
namespace {

constexpr absl::string_view kActivations[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu"};
constexpr absl::string_view kKeys[] = {"attention_k_eq_v",
                                       "enable_moe_block",
                                       "final_logit_softcapping",
                                       "global_head_dim",
                                       "hidden_activation",
                                       "hidden_size_per_layer_input",
                                       "moe_intermediate_size",
                                       "num_experts",
                                       "num_global_key_value_heads",
                                       "num_kv_shared_layers",
                                       "sliding_window",
                                       "top_k_experts",
                                       "use_bidirectional_attention",
                                       "use_double_wide_mlp",
                                       "vocab_size_per_layer_input"};
constexpr ConfigDefaults kDefaults{.rope_theta = 1000000,
                                   .rope_local_base_freq = 10000,
                                   .hidden_act = "gelu_pytorch_tanh",
                                   .max_position_embeddings = 131072,
                                   .tie_word_embeddings = true,
                                   .vocab_size = 262144,
                                   .num_attention_heads = 8,
                                   .num_key_value_heads = 4,
                                   .head_dim = 256,
                                   .sliding_window = 512};
constexpr TensorNames kNames{.attn_out = "post_attention_layernorm",
                             .mlp_in = "pre_feedforward_layernorm",
                             .mlp_out = "post_feedforward_layernorm",
                             .dense_out = "post_feedforward_layernorm_1",
                             .moe_in = "pre_feedforward_layernorm_2",
                             .moe_out = "post_feedforward_layernorm_2",
                             .output_scale = "layer_scalar",
                             .input_embedding = "model.embed_tokens_per_layer",
                             .input_context = "model.per_layer_model_projection",
                             .input_norm = "model.per_layer_projection_norm",
                             .input_gate = "per_layer_input_gate",
                             .input_out = "per_layer_projection",
                             .input_out_norm = "post_per_layer_input_norm",
                             .q_norm = "self_attn.q_norm",
                             .k_norm = "self_attn.k_norm",
                             .moe = "",
                             .router = "router.proj",
                             .router_norm = "router.scale",
                             .expert_scale = "router.per_expert_scale",
                             .stacked_gate_up = "gate_up_proj",
                             .stacked_down = "down_proj",
                             .stacks_are_output_major = true};

constexpr TensorNames GgufNames() {
  TensorNames names = WithGgufQkNorm(WithGgufExperts(kGgufNames));
  names.attn_out = "post_attention_norm";
  names.mlp_out = "post_ffw_norm";
  names.dense_out = "post_ffw_norm_1";
  names.moe_in = "pre_ffw_norm_2";
  names.moe_out = "post_ffw_norm_2";
  names.output_scale = "layer_output_scale.weight";
  names.input_embedding = "per_layer_token_embd";
  names.input_context = "per_layer_model_proj";
  names.input_norm = "per_layer_proj_norm";
  names.input_gate = "inp_gate";
  names.input_out = "proj";
  names.input_out_norm = "post_norm";
  names.router_norm = "ffn_gate_inp.scale";
  names.expert_scale = "ffn_down_exps.scale";
  names.gate_up_stack = "ffn_gate_up_exps";
  return names;
}
constexpr absl::string_view kGgufKeys[] = {"expert_count",
                                           "expert_used_count",
                                           "expert_feed_forward_length",
                                           "attention.key_length_swa",
                                           "attention.value_length_swa",
                                           "attention.shared_kv_layers",
                                           "attention.sliding_window",
                                           "attention.sliding_window_pattern",
                                           "embedding_length_per_layer_input",
                                           "final_logit_softcapping",
                                           "rope.freq_base_swa"};

constexpr absl::string_view kArchitectures[] = {"Gemma4ForCausalLM"};
constexpr absl::string_view kModelTypes[] = {"gemma4_text"};
constexpr absl::string_view kVisionArchitectures[] = {"Gemma4ForConditionalGeneration"};
constexpr absl::string_view kVisionModelTypes[] = {"gemma4"};
constexpr absl::string_view kTowerPrefixes[] = {"model.vision_tower.", "model.audio_tower.",
                                                "model.embed_vision.", "model.embed_audio."};
constexpr TensorNames NamesInVisionModel() {
  TensorNames names = kNames;
  names.skipped = kTowerPrefixes;
  names.embedding = "model.language_model.embed_tokens";
  names.final_norm = "model.language_model.norm";
  names.layer_prefix = "model.language_model.layers.";
  names.input_embedding = "model.language_model.embed_tokens_per_layer";
  names.input_context = "model.language_model.per_layer_model_projection";
  names.input_norm = "model.language_model.per_layer_projection_norm";
  return names;
}

// Rope settings of full layers in files without rope_parameters.
const RopeConfig& DefaultRope() {
  static const RopeConfig kRope = [] {
    RopeConfig rope;
    rope.kind = RopeKind::kProportional;
    rope.partial = 0.25;
    return rope;
  }();
  return kRope;
}

bool IsFull(const ModelConfig& config, std::size_t layer) {
  return config.windows.empty() || config.windows[layer] == 0;
}

void SetHeads(const ModelConfig& config, std::size_t index, AttentionSpec* heads) {
  const PerLayerConfig& per_layer = config.per_layer;
  heads->scale = 1;
  heads->qk_norm = RmsNormSpec(config);
  heads->v_norm = RmsNormSpec(config);
  heads->v_norm.has_weight = false;
  if (!IsFull(config, index)) return;
  heads->num_kv_heads = per_layer.num_global_key_value_heads;
  heads->head_size = heads->v_head_size = heads->rotary_size = per_layer.global_head_dim;
  heads->v_from_k = per_layer.attention_k_eq_v;
}

// Makes each of the last num_kv_shared_layers layers read the K and V of an earlier layer: the last
// layer of the same kind (windowed or full) that stores its own K and V.
absl::Status ShareKeys(const ModelConfig& config, ModelSpec* spec) {
  const PerLayerConfig& per_layer = config.per_layer;
  const std::size_t first = spec->layers.size() - per_layer.num_kv_shared_layers;
  for (std::size_t i = first; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    for (std::size_t source = first; source-- > 0 && layer.kv_from_layer < 0;) {
      if (IsFull(config, source) == IsFull(config, i)) {
        layer.kv_from_layer = static_cast<std::int32_t>(source);
      }
    }
    if (layer.kv_from_layer < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "num_kv_shared_layers is ", per_layer.num_kv_shared_layers, ", but no layer before ",
          first, " has the attention type of layer ", i, "; set a lower number"));
    }
    if (per_layer.use_double_wide_mlp) layer.dense.intermediate *= 2;
  }
  return absl::OkStatus();
}

void AddExperts(const ModelConfig& config, LayerSpec* layer) {
  const NormSpec norm = RmsNormSpec(config);
  layer->mlp = MlpKind::kDenseAndMoe;
  layer->dense_out = layer->moe_in = layer->moe_out = norm;
  MoeSpec& moe = layer->moe;
  moe.num_experts = config.moe.num_experts;
  moe.top_k = config.moe.experts_per_token;
  moe.expert = layer->dense;
  moe.expert.intermediate = config.moe.intermediate_size;
  moe.renormalize = true;
  moe.expert_scale = true;
  moe.router_norm = norm;
  moe.router_norm.weight_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden_size)));
}

void AddInputs(const ModelConfig& config, ModelSpec* spec) {
  const double size = config.per_layer.hidden_size_per_layer_input;
  spec->layer_inputs = {.size = config.per_layer.hidden_size_per_layer_input,
                        .vocab = config.per_layer.vocab_size_per_layer_input,
                        .embed_scale = RoundToTrainingDType(config, std::sqrt(size)),
                        .projection_scale = static_cast<float>(
                            1.0 / std::sqrt(static_cast<double>(config.hidden_size))),
                        .scale = static_cast<float>(std::sqrt(0.5)),
                        .norm = RmsNormSpec(config)};
  for (LayerSpec& layer : spec->layers) {
    layer.input = {.size = config.per_layer.hidden_size_per_layer_input,
                   .act = layer.dense.act,
                   .norm = RmsNormSpec(config)};
  }
}

absl::StatusOr<ModelSpec> BuildSpec(const ModelConfig& config) {
  QUIRE_ASSIGN_OR_RETURN(ModelSpec spec, PreNormSpec(config, FamilyNamed(config.family)));
  QUIRE_ASSIGN_OR_RETURN(spec.rope_tables[0],
                         BuildRopeTable(config.rope, config.per_layer.global_head_dim));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    layer.attn_out = layer.mlp_out = RmsNormSpec(config);
    layer.has_output_scale = true;
    SetHeads(config, i, &layer.heads);
  }
  QUIRE_RETURN_IF_ERROR(ShareKeys(config, &spec));
  if (config.moe.num_experts > 0) {
    for (LayerSpec& layer : spec.layers) AddExperts(config, &layer);
  }
  if (config.per_layer.hidden_size_per_layer_input > 0) AddInputs(config, &spec);
  spec.embed_scale =
      RoundToTrainingDType(config, std::sqrt(static_cast<double>(config.hidden_size)));
  spec.logit_softcap = static_cast<float>(config.final_logit_softcapping);
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace

const Family& Gemma4Family() {
  static const Family kFamily{.name = "gemma4",
                              .architectures = kArchitectures,
                              .model_types = kModelTypes,
                              .defaults = kDefaults,
                              .activations = kActivations,
                              .keys = kKeys,
                              .windows = WindowRule::kPattern,
                              .has_full_last_layer = true,
                              .default_rope = &DefaultRope(),
                              .names = kNames,
                              .gguf_architecture = "gemma4",
                              .gguf_names = GgufNames(),
                              .gguf_keys = kGgufKeys,
                              .build_spec = BuildSpec};
  return kFamily;
}

const Family& Gemma4VisionFamily() {
  static const Family kFamily =
      InMultimodalModel(Gemma4Family(), "gemma4_vision", kVisionArchitectures, kVisionModelTypes,
                        NamesInVisionModel());
  return kFamily;
}

}  // namespace quire::models
