#include "models/families/common.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr std::pair<absl::string_view, Activation> kActivations[] = {
    {"silu", Activation::kSilu},         {"swish", Activation::kSilu},
    {"gelu", Activation::kGeluErf},      {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_new", Activation::kGeluTanh}, {"gelu_fast", Activation::kGeluTanh},
    {"relu2", Activation::kRelu2}};

// Returns the key that states the activation in a family's files.
absl::string_view ActivationKey(const Family& family) {
  for (const absl::string_view key : {"hidden_activation", "mlp_hidden_act"}) {
    if (ReadsKey(family, key)) return key;
  }
  return "hidden_act";
}

absl::StatusOr<Activation> ActivationOf(const ModelConfig& config, const Family& family) {
  for (const auto& [name, activation] : kActivations) {
    if (config.hidden_act == name && std::find(family.activations.begin(), family.activations.end(),
                                               name) != family.activations.end()) {
      return activation;
    }
  }
  return absl::UnimplementedError(
      absl::StrCat(ActivationKey(family), " \"", config.hidden_act, "\" is not supported by ",
                   family.name, " (supported: ", absl::StrJoin(family.activations, ", "), ")"));
}

// Returns the number of positions that the scaled rope table supports.
std::uint32_t MaxPosition(const ModelConfig& config) {
  if (config.rope.kind != RopeKind::kYarn) return config.max_position_embeddings;
  const double stretched = config.rope.factor * config.rope.original_max_position;
  const double limit = std::min(stretched, double{1u << 30});
  return std::max(config.max_position_embeddings, static_cast<std::uint32_t>(limit));
}

AttentionSpec MakeAttention(const ModelConfig& config) {
  AttentionSpec heads;
  heads.num_heads = config.num_attention_heads;
  heads.num_kv_heads = config.num_key_value_heads;
  heads.head_size = config.head_dim;
  heads.v_head_size = config.head_dim;
  heads.q_bias = config.attention_bias;
  heads.k_bias = config.attention_bias;
  heads.v_bias = config.attention_bias;
  heads.o_bias = config.attention_bias;
  heads.rope = 0;
  heads.rotary_size = config.rotary_size;
  heads.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  return heads;
}

LayerSpec MakeLayer(const ModelConfig& config, Activation activation) {
  LayerSpec layer;
  layer.attn_in = RmsNormSpec(config);
  layer.mlp_in = RmsNormSpec(config);
  layer.heads = MakeAttention(config);
  layer.dense.intermediate = config.intermediate_size;
  layer.dense.act = activation;
  layer.dense.gate_bias = config.mlp_bias;
  layer.dense.up_bias = config.mlp_bias;
  layer.dense.down_bias = config.mlp_bias;
  return layer;
}

}  // namespace

Family InMultimodalModel(const Family& text, absl::string_view name,
                         std::span<const absl::string_view> architectures,
                         std::span<const absl::string_view> model_types, const TensorNames& names) {
  Family family = text;
  family.name = name;
  family.architectures = architectures;
  family.text_model_type = text.model_types[0];
  family.model_types = model_types;
  family.names = names;
  family.gguf_architecture = "";
  return family;
}

NormSpec RmsNormSpec(const ModelConfig& config, float weight_offset) {
  NormSpec norm;
  norm.kind = NormKind::kRms;
  norm.eps = config.rms_norm_eps;
  norm.weight_offset = config.is_gguf ? 0 : weight_offset;
  return norm;
}

float RoundToTrainingDType(const ModelConfig& config, double factor) {
  const float rounded = static_cast<float>(factor);
  if (config.dtype == DType::kBF16) return BF16::FromFloat(rounded).ToFloat();
  if (config.dtype == DType::kF16) return F16::FromFloat(rounded).ToFloat();
  return rounded;
}

std::optional<MlpSpec> SharedExperts(const ModelConfig& config, const MlpSpec& dense) {
  if (config.moe.n_shared_experts == 0) return std::nullopt;
  MlpSpec shared = dense;
  shared.intermediate = config.moe.intermediate_size * config.moe.n_shared_experts;
  return shared;
}

MoeSpec SigmoidRouting(const ModelConfig& config, const MlpSpec& dense) {
  MoeSpec moe;
  moe.score = RouterScore::kSigmoid;
  moe.choice_bias = true;
  moe.groups = config.moe.n_group;
  moe.groups_kept = config.moe.topk_group;
  moe.group_score = GroupScore::kTop2Sum;
  moe.renormalize = config.moe.norm_topk_prob;
  moe.renorm_eps = 1e-20f;
  moe.weight_scale = static_cast<float>(config.moe.routed_scaling_factor);
  moe.shared = SharedExperts(config, dense);
  return moe;
}

absl::Status UnsupportedName(absl::string_view key, absl::string_view value,
                             absl::string_view supported, const Family& family) {
  return absl::UnimplementedError(absl::StrCat(key, " \"", value, "\" is not supported by ",
                                               family.name, " (supported: ", supported, ")"));
}

absl::Status CheckName(absl::string_view key, absl::string_view value, absl::string_view supported,
                       const Family& family) {
  if (value.empty() || value == supported) return absl::OkStatus();
  return UnsupportedName(key, value, supported, family);
}

void UseExperts(const ModelConfig& config, MoeSpec moe, ModelSpec* spec) {
  moe.num_experts = config.moe.num_experts;
  moe.top_k = config.moe.experts_per_token;
  for (std::size_t i = 0; i < spec->layers.size(); ++i) {
    if (!config.moe.sparse_layers[i]) continue;
    LayerSpec& layer = spec->layers[i];
    moe.expert = layer.dense;
    moe.expert.intermediate = config.moe.intermediate_size;
    layer.mlp = MlpKind::kMoe;
    layer.moe = moe;
    layer.dense = MlpSpec{};
  }
}

MlaSpec UnrotatedMla(const ModelConfig& config) {
  MlaSpec mla;
  mla.num_heads = config.num_attention_heads;
  mla.q_lora_rank = config.mla.q_lora_rank;
  mla.kv_lora_rank = config.mla.kv_lora_rank;
  mla.nope_size = config.mla.qk_nope_head_dim;
  mla.rope_size = config.mla.qk_rope_head_dim;
  mla.v_size = config.mla.v_head_dim;
  const double columns = mla.nope_size + mla.rope_size;
  mla.scale = static_cast<float>(1 / std::sqrt(columns));
  return mla;
}

void UseMla(const MlaSpec& mla, ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    layer.attention = AttentionKind::kMla;
    layer.heads = AttentionSpec{};
    layer.mla = mla;
  }
  AssignCacheGroups(spec);
}

void RemoveRope(ModelSpec* spec) {
  spec->rope_tables.clear();
  for (LayerSpec& layer : spec->layers) {
    layer.heads.rope = -1;
    layer.heads.rotary_size = 0;
  }
}

void ApplyGraniteMultipliers(const ModelConfig& config, ModelSpec* spec) {
  spec->embed_scale = static_cast<float>(config.embedding_multiplier);
  spec->logit_scale = static_cast<float>(1.0 / config.logits_scaling);
  for (LayerSpec& layer : spec->layers) {
    layer.heads.scale = static_cast<float>(config.attention_multiplier);
    layer.residual_scale = static_cast<float>(config.residual_multiplier);
  }
}

void UseRecurrentLayers(const ModelConfig& config, const RecurrentSpec& recurrent,
                        ModelSpec* spec) {
  for (std::size_t i = 0; i < spec->layers.size(); ++i) {
    if (config.hybrid.layers[i] != LayerBranch::kRecurrent) continue;
    LayerSpec& layer = spec->layers[i];
    layer.attention = AttentionKind::kRecurrent;
    layer.heads = AttentionSpec{};
    layer.mla = MlaSpec{};
    layer.recurrent = recurrent;
  }
  AssignCacheGroups(spec);
}

void UseMamba(const ModelConfig& config, std::uint32_t norm_groups, ModelSpec* spec) {
  RecurrentSpec mamba = config.hybrid.recurrent;
  mamba.delta = false;
  mamba.skip = true;
  mamba.gate = RecurrentGate::kSiluThenNorm;
  mamba.norm_eps = config.rms_norm_eps;
  mamba.norm_groups = norm_groups;
  UseRecurrentLayers(config, mamba, spec);
}

absl::StatusOr<ModelSpec> PreNormSpec(const ModelConfig& config, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(const Activation activation, ActivationOf(config, family));
  ModelSpec spec;
  spec.vocab_size = config.vocab_size;
  spec.hidden = config.hidden_size;
  spec.max_position = MaxPosition(config);
  QUIRE_ASSIGN_OR_RETURN(RopeTable table, BuildRopeTable(config.rope, config.rotary_size));
  spec.rope_tables.push_back(std::move(table));
  if (config.local_rope) {
    QUIRE_ASSIGN_OR_RETURN(RopeTable local, BuildRopeTable(*config.local_rope, config.rotary_size));
    spec.rope_tables.push_back(std::move(local));
  }
  spec.layers.assign(config.num_hidden_layers, MakeLayer(config, activation));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    AttentionSpec& heads = spec.layers[i].heads;
    if (!config.windows.empty()) heads.window = config.windows[i];
    if (heads.window != 0 && config.local_rope) heads.rope = 1;
    // A window as long as the context has no effect, but would require a separate layer group.
    if (heads.window >= spec.max_position) heads.window = 0;
    if (!config.rope_layers.empty() && !config.rope_layers[i]) heads.rope = -1;
  }
  spec.final_norm = RmsNormSpec(config);
  spec.tie_embeddings = config.tie_word_embeddings;
  spec.eos_ids = config.eos_ids;
  spec.bos_id = config.bos_id;
  spec.pad_id = config.pad_id;
  AssignCacheGroups(&spec);
  return spec;
}

}  // namespace quire::models
