#include "models/families/gguf_layers.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kMaxRank = 1u << 15;
constexpr std::uint32_t kMaxStateHeads = 1u << 16;

// Returns the rows of a matrix of a layer, or 0 if there is no such tensor.
std::uint32_t RowsOf(const GgufKeys& keys, std::size_t layer, absl::string_view name) {
  const formats::GgufTensor* tensor = keys.LayerTensor(layer, absl::StrCat(name, ".weight"));
  if (tensor == nullptr || tensor->extents.size() != 2) return 0;
  return static_cast<std::uint32_t>(std::min<std::int64_t>(tensor->extents[1], kMaxVocab));
}

// Checks that the layers with a router agree with leading_dense_block_count.
absl::Status CheckDenseLayers(const GgufSource& source, const MoeConfig& moe) {
  constexpr absl::string_view kKey = "leading_dense_block_count";
  if (!source.Reads(kKey) || !source.keys.Has(kKey)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t dense,
                         source.keys.gguf().Integer(source.keys.Name(kKey), 0, kMaxLayers));
  for (std::size_t i = 0; i < moe.sparse_layers.size(); ++i) {
    if (moe.sparse_layers[i] == (static_cast<std::int64_t>(i) >= dense)) continue;
    return source.keys.Error(kKey, absl::StrCat("is ", dense, ", but block ", i, " has ",
                                                moe.sparse_layers[i] ? "a" : "no", " tensor ",
                                                source.family.gguf_names.router, ".weight"));
  }
  return absl::OkStatus();
}

absl::Status ReadRouting(const GgufSource& source, MoeConfig* moe) {
  const GgufKeys& keys = source.keys;
  // Writers encode the absence of groups as 0 or 1, and the absence of a factor as 0.
  if (source.Reads("expert_group_count")) {
    for (const auto& [key, count] : {std::pair("expert_group_count", &moe->n_group),
                                     {"expert_group_used_count", &moe->topk_group}}) {
      QUIRE_ASSIGN_OR_RETURN(const std::uint32_t groups,
                             keys.CountOr(key, kMaxExperts, 1, /*low=*/0));
      *count = std::max(groups, 1u);
    }
    // Families with a correction bias do not need topk_method.
    if (source.family.gguf_names.choice_bias.empty()) {
      moe->topk_method = moe->n_group > 1 ? "group_limited_greedy" : "greedy";
    }
  }
  if (source.Reads("expert_weights_norm")) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> normalizes,
                           keys.gguf().OptionalBool(keys.Name("expert_weights_norm")));
    moe->norm_topk_prob = normalizes.value_or(false);
  }
  if (source.Reads("expert_weights_scale")) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> scale,
                           keys.gguf().OptionalNumber(keys.Name("expert_weights_scale")));
    moe->routed_scaling_factor = 1;
    if (scale && *scale != 0) {
      QUIRE_ASSIGN_OR_RETURN(moe->routed_scaling_factor, keys.Positive("expert_weights_scale", 1));
    }
  }
  if (!source.Reads("expert_gating_func")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t function,
                         keys.CountOr("expert_gating_func", 1u << 16, 0, /*low=*/0));
  if (function == 0) return absl::OkStatus();
  if (function > 2) {
    return keys.Unsupported("expert_gating_func", absl::StrCat(function),
                            "1 for softmax, 2 for sigmoid");
  }
  moe->scoring_func = function == 1 ? "softmax" : "sigmoid";
  return absl::OkStatus();
}

absl::Status ReadWidths(const GgufSource& source, ModelConfig* config) {
  const GgufKeys& keys = source.keys;
  MoeConfig& moe = config->moe;
  QUIRE_ASSIGN_OR_RETURN(moe.intermediate_size,
                         keys.SameInBlocks("expert_feed_forward_length", source.num_blocks,
                                           kMaxIntermediate, config->intermediate_size));
  if (source.Reads("expert_shared_feed_forward_length")) {
    QUIRE_ASSIGN_OR_RETURN(moe.shared_expert_intermediate_size,
                           keys.CountOr("expert_shared_feed_forward_length", kMaxIntermediate,
                                        source.family.defaults.shared_expert_intermediate_size));
  }
  if (source.Reads("expert_shared_count")) {
    QUIRE_ASSIGN_OR_RETURN(moe.n_shared_experts,
                           keys.CountOr("expert_shared_count", kMaxExperts,
                                        source.family.defaults.n_shared_experts, /*low=*/0));
  }
  if (!source.Reads("moe_latent_size")) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(moe.latent_size, keys.CountOr("moe_latent_size", kMaxHidden, 0));
  return absl::OkStatus();
}

// Returns the branch whose tensors the layer has.
LayerBranch BranchOf(const GgufSource& source, std::size_t layer) {
  const TensorNames& names = source.family.gguf_names;
  const auto has_kind = [&](LayerBranch branch) {
    return std::any_of(source.family.layer_types.begin(), source.family.layer_types.end(),
                       [&](const LayerTypeName& type) { return type.branch == branch; });
  };
  for (const absl::string_view name : {names.a_log, names.short_conv}) {
    if (!name.empty() && source.keys.LayerTensor(layer, name) != nullptr) {
      return LayerBranch::kRecurrent;
    }
  }
  if (has_kind(LayerBranch::kExperts) && source.HasMatrix(layer, names.router)) {
    return LayerBranch::kExperts;
  }
  if (has_kind(LayerBranch::kMlp) && source.HasMatrix(layer, names.down)) return LayerBranch::kMlp;
  return LayerBranch::kAttention;
}

// Reads the sizes of Mamba-2 and of the gated delta rule.
absl::Status ReadStateSizes(const GgufSource& source, RecurrentSpec* recurrent) {
  const GgufKeys& keys = source.keys;
  QUIRE_ASSIGN_OR_RETURN(recurrent->heads, keys.Count("ssm.time_step_rank", kMaxStateHeads));
  QUIRE_ASSIGN_OR_RETURN(recurrent->key_heads, keys.Count("ssm.group_count", kMaxStateHeads));
  QUIRE_ASSIGN_OR_RETURN(recurrent->key_size, keys.Count("ssm.state_size", kMaxStateColumns));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t inner, keys.Count("ssm.inner_size", kMaxIntermediate));
  recurrent->value_size = inner / recurrent->heads;
  if (inner % recurrent->heads == 0 && recurrent->value_size <= kMaxStateColumns) {
    return absl::OkStatus();
  }
  return keys.Error(
      "ssm.inner_size",
      absl::StrCat("is ", inner, ", it must be a multiple of ", keys.Name("ssm.time_step_rank"),
                   " ", recurrent->heads, " and at most ", kMaxStateColumns, " times as large"));
}

// Reads the sizes of the delta rule with a decay for each channel. No key states the number of
// heads, so it is the number of rows of ssm_beta.
absl::Status ReadKdaSizes(const GgufSource& source, const std::vector<LayerBranch>& layers,
                          RecurrentSpec* recurrent) {
  QUIRE_ASSIGN_OR_RETURN(recurrent->key_size, source.keys.Count("kda.head_dim", kMaxStateColumns));
  recurrent->value_size = recurrent->key_size;
  const auto layer = std::find(layers.begin(), layers.end(), LayerBranch::kRecurrent);
  if (layer == layers.end()) return absl::OkStatus();
  const auto index = static_cast<std::size_t>(layer - layers.begin());
  const absl::string_view name = source.family.gguf_names.in_b;
  recurrent->heads = recurrent->key_heads = RowsOf(source.keys, index, name);
  if (recurrent->heads != 0 && recurrent->heads <= kMaxStateHeads) return absl::OkStatus();
  return source.keys.gguf().Error(
      absl::StrCat("tensor blk.", index, ".", name, ".weight"),
      absl::StrCat("must be a matrix with a row for each head, 1 to ", kMaxStateHeads));
}

}  // namespace

bool GgufSource::Reads(absl::string_view key) const {
  return std::find(family.gguf_keys.begin(), family.gguf_keys.end(), key) != family.gguf_keys.end();
}

bool GgufSource::HasMatrix(std::size_t layer, absl::string_view name) const {
  return keys.LayerTensor(layer, absl::StrCat(name, ".weight")) != nullptr;
}

absl::Status ReadGgufExperts(const GgufSource& source, ModelConfig* config) {
  if (!source.Reads("expert_count")) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  const Family& family = source.family;
  MoeConfig& moe = config->moe;
  moe.norm_topk_prob = true;
  moe.n_shared_experts = family.defaults.n_shared_experts;
  moe.sparse_layers.assign(config->num_hidden_layers, false);
  if (ReadsKey(family, "shared_intermediate_size")) {
    QUIRE_ASSIGN_OR_RETURN(config->shared_intermediate_size,
                           keys.CountOr("expert_shared_feed_forward_length", kMaxIntermediate,
                                        config->intermediate_size));
  }
  const bool may_be_dense = family.defaults.num_experts == 0 ||
                            !family.gguf_moe_architecture.empty() ||
                            ReadsKey(family, "shared_intermediate_size");
  QUIRE_ASSIGN_OR_RETURN(
      const std::optional<std::int64_t> experts,
      keys.gguf().OptionalInteger(keys.Name("expert_count"), may_be_dense ? 0 : 1, kMaxExperts));
  if (!experts && !may_be_dense) return keys.Error("expert_count", "is missing");
  moe.num_experts = static_cast<std::uint32_t>(experts.value_or(0));
  if (moe.num_experts == 0) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(moe.experts_per_token, keys.Count("expert_used_count", moe.num_experts));
  QUIRE_RETURN_IF_ERROR(ReadWidths(source, config));
  QUIRE_RETURN_IF_ERROR(ReadRouting(source, &moe));
  if (ReadsKey(family, "swiglu_limit")) {
    moe.swiglu_limit = kDefaultSwigluLimit;
    moe.swiglu_alpha = kDefaultSwigluAlpha;
  }
  const TensorNames& names = family.gguf_names;
  moe.use_routing_bias = false;
  for (std::size_t i = 0; i < moe.sparse_layers.size(); ++i) {
    moe.sparse_layers[i] = source.HasMatrix(i, names.router);
    moe.use_routing_bias |= !names.choice_bias.empty() && keys.LayerTensor(i, names.choice_bias);
  }
  return CheckDenseLayers(source, moe);
}

absl::Status ReadGgufStates(const GgufSource& source, ModelConfig* config) {
  if (source.family.layer_types.empty()) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  HybridConfig& hybrid = config->hybrid;
  for (std::size_t i = 0; i < config->num_hidden_layers; ++i) {
    hybrid.layers.push_back(BranchOf(source, i));
  }
  RecurrentSpec& recurrent = hybrid.recurrent;
  if (source.Reads("shortconv.l_cache")) {
    QUIRE_ASSIGN_OR_RETURN(recurrent.conv_width, keys.Count("shortconv.l_cache", kMaxConvWidth));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(recurrent.conv_width, keys.Count("ssm.conv_kernel", kMaxConvWidth));
  QUIRE_RETURN_IF_ERROR(source.Reads("kda.head_dim")
                            ? ReadKdaSizes(source, hybrid.layers, &recurrent)
                            : ReadStateSizes(source, &recurrent));
  recurrent.conv_channels = 2 * recurrent.key_columns() + recurrent.value_columns();
  const absl::string_view bias = source.family.gguf_names.conv_bias;
  for (std::size_t i = 0; i < config->num_hidden_layers && !bias.empty(); ++i) {
    recurrent.conv_bias |= keys.LayerTensor(i, bias) != nullptr;
  }
  const auto mlp = std::find(hybrid.layers.begin(), hybrid.layers.end(), LayerBranch::kMlp);
  if (mlp == hybrid.layers.end()) return absl::OkStatus();
  // In files with experts, feed_forward_length is the intermediate size of an expert.
  const std::uint32_t width = RowsOf(keys, static_cast<std::size_t>(mlp - hybrid.layers.begin()),
                                     source.family.gguf_names.up);
  if (width != 0) config->intermediate_size = width;
  return absl::OkStatus();
}

absl::Status ReadGgufMla(const GgufSource& source, ModelConfig* config) {
  if (!source.Reads("attention.kv_lora_rank")) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  MlaConfig& mla = config->mla;
  // Files without this key have one matrix instead of attn_k_b and attn_v_b.
  constexpr absl::string_view kColumns = "attention.key_length_mla";
  if (!keys.Has(kColumns)) return keys.Error(kColumns, "is missing; reconvert the model");
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t columns, keys.Count(kColumns, kMaxHeadDim));
  QUIRE_ASSIGN_OR_RETURN(mla.v_head_dim, keys.Count("attention.value_length_mla", kMaxHeadDim));
  QUIRE_ASSIGN_OR_RETURN(mla.q_lora_rank, keys.CountOr("attention.q_lora_rank", kMaxRank, 0));
  QUIRE_ASSIGN_OR_RETURN(mla.kv_lora_rank, keys.Count("attention.kv_lora_rank", kMaxRank));
  constexpr absl::string_view kRotated = "rope.dimension_count";
  QUIRE_ASSIGN_OR_RETURN(mla.qk_rope_head_dim, keys.Count(kRotated, kMaxHeadDim));
  if (mla.qk_rope_head_dim % 2 != 0 || mla.qk_rope_head_dim >= columns) {
    return keys.Error(kRotated,
                      absl::StrCat("is ", mla.qk_rope_head_dim, ", it must be even and less than ",
                                   keys.Name(kColumns), " ", columns));
  }
  mla.qk_nope_head_dim = columns - mla.qk_rope_head_dim;
  // MLA has its own head sizes. The general ones are set as ReadModelConfig sets them.
  config->num_key_value_heads = config->num_attention_heads;
  config->head_dim = mla.qk_rope_head_dim;
  return absl::OkStatus();
}

absl::Status ReadGgufIndex(const GgufSource& source, ModelConfig* config) {
  if (!source.Reads("attention.indexer.top_k")) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  IndexConfig& index = config->index;
  QUIRE_ASSIGN_OR_RETURN(index.topk, keys.Count("attention.indexer.top_k", kMaxPositions));
  QUIRE_ASSIGN_OR_RETURN(index.n_heads, keys.Count("attention.indexer.head_count", kMaxHeads));
  QUIRE_ASSIGN_OR_RETURN(index.head_dim, keys.Count("attention.indexer.key_length", kMaxHeadDim));
  index.rope_interleave = source.family.defaults.indexer_rope_interleave;
  for (std::size_t i = 0; i < config->num_hidden_layers; ++i) {
    index.has_indexer.push_back(source.HasMatrix(i, source.family.gguf_names.index_k));
  }
  if (index.has_indexer.front()) return absl::OkStatus();
  return keys.gguf().Error(
      absl::StrCat("tensor blk.0.", source.family.gguf_names.index_k, ".weight"), "is missing");
}

absl::Status ReadGgufChunks(const GgufSource& source, ModelConfig* config) {
  if (!source.Reads("interleave_moe_layer_step")) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  const ConfigDefaults& defaults = source.family.defaults;
  // Files have no keys for the chunk size, the layers without rope, temperature tuning and the
  // norms of q and k. The values below are those of the published models. A window of 0 marks a
  // file of another model.
  constexpr absl::string_view kWindow = "attention.sliding_window";
  if (keys.Has(kWindow)) {
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t window,
                           keys.gguf().Integer(keys.Name(kWindow), 0, kMaxPositions));
    if (window == 0 || window != defaults.attention_chunk_size) {
      return keys.Unsupported(kWindow, absl::StrCat(window),
                              absl::StrCat("none, or ", defaults.attention_chunk_size));
    }
  }
  constexpr std::uint32_t kInterval = 4;
  constexpr std::uint32_t kExpertsWithoutNorm = 128;
  for (std::uint32_t i = 0; i < config->num_hidden_layers; ++i) {
    config->rope_layers.push_back((i + 1) % kInterval != 0);
    config->chunks.push_back(config->rope_layers.back() ? defaults.attention_chunk_size : 0);
  }
  config->attn_temperature_tuning = true;
  config->floor_scale = defaults.floor_scale;
  config->attn_scale = defaults.attn_scale;
  config->use_qk_norm = config->moe.num_experts != kExpertsWithoutNorm;
  return absl::OkStatus();
}

absl::Status ReadGgufPerLayer(const GgufSource& source, ModelConfig* config) {
  if (!source.Reads("attention.key_length_swa")) return absl::OkStatus();
  const GgufKeys& keys = source.keys;
  PerLayerConfig& own = config->per_layer;
  const std::uint32_t layers = config->num_hidden_layers;
  own.global_head_dim = config->head_dim;
  QUIRE_ASSIGN_OR_RETURN(config->head_dim, keys.Count("attention.key_length_swa", kMaxHeadDim));
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::uint32_t> kv_heads,
                         keys.PerBlock("attention.head_count_kv", source.num_blocks, kMaxHeads));
  if (kv_heads.empty()) kv_heads.assign(source.num_blocks, config->num_attention_heads);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> widths,
                         keys.PerBlock("feed_forward_length", source.num_blocks, kMaxIntermediate));
  QUIRE_ASSIGN_OR_RETURN(own.num_kv_shared_layers,
                         keys.CountOr("attention.shared_kv_layers", layers - 1, 0, /*low=*/0));
  own.use_double_wide_mlp = own.num_kv_shared_layers > 0 && widths.back() == 2 * widths.front();
  own.num_global_key_value_heads = config->num_key_value_heads;
  for (std::uint32_t i = 0; i < layers; ++i) {
    const bool is_full = config->windows.empty() || config->windows[i] == 0;
    const bool is_shared = i >= layers - own.num_kv_shared_layers;
    const std::uint32_t width = widths.front() * (is_shared && own.use_double_wide_mlp ? 2 : 1);
    if (widths[i] != width) {
      return keys.Unsupported(absl::StrCat("feed_forward_length[", i, "]"), absl::StrCat(widths[i]),
                              absl::StrCat(width));
    }
    (is_full ? own.num_global_key_value_heads : config->num_key_value_heads) = kv_heads[i];
    if (!is_full || is_shared) continue;
    own.attention_k_eq_v = !source.HasMatrix(i, source.family.gguf_names.v);
  }
  QUIRE_ASSIGN_OR_RETURN(
      own.hidden_size_per_layer_input,
      keys.CountOr("embedding_length_per_layer_input", kMaxHidden, 0, /*low=*/0));
  own.vocab_size_per_layer_input = config->vocab_size;
  const formats::GgufTensor* embedding =
      keys.gguf().FindTensor(absl::StrCat(source.family.gguf_names.input_embedding, ".weight"));
  if (embedding != nullptr && embedding->extents.size() == 2) {
    own.vocab_size_per_layer_input =
        static_cast<std::uint32_t>(std::min<std::int64_t>(embedding->extents[1], kMaxVocab));
  }
  return absl::OkStatus();
}

}  // namespace quire::models
