#include "models/config/tensor_table.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::models {
namespace {

// An empty member type, to iterate over the rows of the tables without weights.
struct NoMemory {};
using NoLayer = LayerTensors<NoMemory, NoMemory>;

// The functions below return nullopt for dimensions of other kinds of blocks.
std::optional<Extent> ExtentInHeads(Dim dim, const AttentionSpec& heads) {
  const std::int64_t queries = std::int64_t{heads.num_heads} * heads.head_size;
  const std::int64_t keys = std::int64_t{heads.num_kv_heads} * heads.head_size;
  switch (dim) {
    case Dim::kHeads:
      return Extent{heads.num_heads, "num_attention_heads"};
    case Dim::kHeadSize:
      return Extent{heads.head_size, "head_dim"};
    case Dim::kQueries:
      return Extent{queries, "num_attention_heads * head_dim"};
    case Dim::kQueryRows:
      if (!heads.output_gate) return Extent{queries, "num_attention_heads * head_dim"};
      return Extent{2 * queries, "2 * num_attention_heads * head_dim"};
    case Dim::kKeys:
      return Extent{keys, "num_key_value_heads * head_dim"};
    case Dim::kQkv:
      return Extent{queries + 2 * keys,
                    "(num_attention_heads + 2 * num_key_value_heads) * head_dim"};
    default:
      return std::nullopt;
  }
}

std::optional<Extent> ExtentInMla(Dim dim, const MlaSpec& mla) {
  const std::int64_t heads = mla.num_heads;
  switch (dim) {
    case Dim::kMlaQueries:
      return Extent{heads * (mla.nope_size + mla.rope_size),
                    "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"};
    case Dim::kMlaQueryRank:
      return Extent{mla.q_lora_rank, "q_lora_rank"};
    case Dim::kMlaRank:
      return Extent{mla.kv_lora_rank, "kv_lora_rank"};
    case Dim::kMlaRow:
      return Extent{std::int64_t{mla.kv_lora_rank} + mla.rope_size,
                    "kv_lora_rank + qk_rope_head_dim"};
    case Dim::kMlaNope:
      return Extent{mla.nope_size, "qk_nope_head_dim"};
    case Dim::kMlaValue:
      return Extent{mla.v_size, "v_head_dim"};
    case Dim::kMlaKeysAndValues:
      return Extent{heads * (mla.nope_size + mla.v_size),
                    "num_attention_heads * (qk_nope_head_dim + v_head_dim)"};
    case Dim::kMlaValues:
      return Extent{heads * mla.v_size, "num_attention_heads * v_head_dim"};
    default:
      return std::nullopt;
  }
}

std::optional<Extent> ExtentInRecurrent(Dim dim, const RecurrentSpec& recurrent) {
  const std::int64_t values = recurrent.value_columns();
  switch (dim) {
    case Dim::kRecurrentHeads:
      return Extent{recurrent.heads, "number of state heads"};
    case Dim::kRecurrentDecays:
      return Extent{recurrent.decay_columns(), "decays of all state heads"};
    case Dim::kRecurrentRates:
      return Extent{std::int64_t{recurrent.heads} + recurrent.decay_columns(),
                    "2 * number of state heads"};
    case Dim::kRecurrentValues:
      return Extent{values, "state heads * their value size"};
    case Dim::kRecurrentChannels:
      return Extent{recurrent.conv_channels, "columns of q, k and v of the convolution"};
    case Dim::kRecurrentChannelsAndGates:
      return Extent{recurrent.conv_channels + values, "columns of q, k, v and z"};
    case Dim::kRecurrentIn:
      return Extent{recurrent.in_columns(), "columns of z, the convolution and dt"};
    case Dim::kRecurrentKeys:
      return Extent{recurrent.key_columns(), "key heads * their size"};
    case Dim::kRecurrentGateRank:
      return Extent{recurrent.gate_rank, "rank of the output gate"};
    case Dim::kRecurrentDecayRank:
      return Extent{recurrent.decay_rank, "rank of the decay"};
    case Dim::kRecurrentTaps:
      return Extent{recurrent.conv_width, "width of the convolution"};
    case Dim::kRecurrentNorm:
      return Extent{recurrent.norm_groups == 0 ? recurrent.value_size : values,
                    "columns of the gated norm"};
    default:
      return std::nullopt;
  }
}

std::optional<Extent> ExtentInIndex(Dim dim, const IndexSpec& index) {
  switch (dim) {
    case Dim::kIndexHeads:
      return Extent{index.heads, "index_n_heads"};
    case Dim::kIndexSize:
      return Extent{index.size, "index_head_dim"};
    case Dim::kIndexQueries:
      return Extent{std::int64_t{index.heads} * index.size, "index_n_heads * index_head_dim"};
    default:
      return std::nullopt;
  }
}

std::optional<Extent> ExtentInMoe(Dim dim, std::uint32_t hidden, const MoeSpec& moe) {
  const std::int64_t shared = moe.shared ? moe.shared->intermediate : 0;
  switch (dim) {
    case Dim::kExperts:
      return Extent{moe.num_experts, "number of experts"};
    case Dim::kExpertInner:
      return Extent{moe.expert.intermediate, "width of an expert"};
    case Dim::kTwoExpertInner:
      return Extent{2 * std::int64_t{moe.expert.intermediate}, "2 * width of an expert"};
    case Dim::kSharedInner:
      return Extent{shared, "width of the shared expert"};
    case Dim::kTwoSharedInner:
      return Extent{2 * shared, "2 * width of the shared expert"};
    case Dim::kLatent:
      return Extent{moe.latent, "moe_latent_size"};
    case Dim::kExpertInput:
      if (moe.latent != 0) return Extent{moe.latent, "moe_latent_size"};
      return Extent{hidden, "hidden_size"};
    default:
      return std::nullopt;
  }
}

// A tensor has, for each key head, a run of rows of each size. Returns the first runs of all key
// heads, then the second ones, and so on.
std::vector<RowRange> RowsByKeyHead(std::int64_t key_heads, std::span<const std::int64_t> sizes) {
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<RowRange> rows;
  std::int64_t at = 0;
  for (const std::int64_t size : sizes) {
    for (std::int64_t head = 0; head < key_heads; ++head) rows.push_back({head * all + at, size});
    at += size;
  }
  return rows;
}

}  // namespace

absl::InlinedVector<BlockKind, 2> BlocksOf(const LayerSpec& layer) {
  constexpr std::pair<AttentionKind, BlockKind> kAttentionBlocks[] = {
      {AttentionKind::kHeads, BlockKind::kAttention},
      {AttentionKind::kMla, BlockKind::kMla},
      {AttentionKind::kRecurrent, BlockKind::kRecurrent},
      {AttentionKind::kShortConv, BlockKind::kShortConv}};
  absl::InlinedVector<BlockKind, 2> blocks;
  for (const auto& [attention, block] : kAttentionBlocks) {
    if (layer.attention == attention) blocks.push_back(block);
  }
  if (layer.mlp != MlpKind::kNone) {
    blocks.push_back(layer.mlp == MlpKind::kDense ? BlockKind::kMlp : BlockKind::kMoe);
  }
  return blocks;
}

bool HasBlock(const LayerSpec& layer, BlockKind block) {
  if (block == BlockKind::kInput) return layer.input.size > 0;
  if (block == BlockKind::kMlp && layer.mlp == MlpKind::kDenseAndMoe) return true;
  const auto blocks = BlocksOf(layer);
  return block == BlockKind::kNorms ||
         std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

Extent ExtentOf(Dim dim, std::uint32_t hidden, const LayerSpec& layer) {
  switch (dim) {
    case Dim::kNone:
      return {0, ""};
    case Dim::kOne:
      return {1, "1"};
    case Dim::kHidden:
      return {hidden, "hidden_size"};
    case Dim::kThreeHidden:
      return {3 * std::int64_t{hidden}, "3 * hidden_size"};
    case Dim::kShortConvTaps:
      return {layer.short_conv.width, "width of the convolution"};
    case Dim::kInner:
      return {layer.dense.intermediate, "intermediate_size"};
    case Dim::kTwoInner:
      return {2 * std::int64_t{layer.dense.intermediate}, "2 * intermediate_size"};
    case Dim::kLayerInput:
      return {layer.input.size, "hidden_size_per_layer_input"};
    default:
      break;
  }
  for (const std::optional<Extent>& extent :
       {ExtentInHeads(dim, layer.heads), ExtentInMla(dim, layer.mla),
        ExtentInRecurrent(dim, layer.recurrent),
        ExtentInIndex(dim, layer.mla.index.value_or(IndexSpec{})),
        ExtentInMoe(dim, hidden, layer.moe)}) {
    if (extent) return *extent;
  }
  QUIRE_CHECK(false);
  return {};
}

bool TensorInfo::IsIn(const LayerSpec& layer) const {
  if (is_present != nullptr && !is_present(layer)) return false;
  return norm == nullptr || (norm(layer).kind != NormKind::kNone && norm(layer).has_weight);
}

std::vector<PartInfo> TensorInfo::PartsIn(const TensorNames& names) const {
  const auto is_named = [&](absl::string_view TensorNames::*name) {
    return name != nullptr && !(names.*name).empty();
  };
  if (is_named(fused.name) || is_named(fused.stack_name)) return {fused};
  std::vector<PartInfo> found;
  for (const PartInfo& part : parts) {
    if (is_named(part.name)) found.push_back(part);
  }
  return found;
}

std::vector<RowRange> QueryRows(const LayerSpec& layer) {
  const std::int64_t size = layer.heads.head_size;
  if (!layer.heads.output_gate) return {{0, layer.heads.num_heads * size}};
  std::vector<RowRange> rows;
  for (std::int64_t h = 0; h < layer.heads.num_heads; ++h) rows.push_back({2 * h * size, size});
  return rows;
}

std::vector<RowRange> KeyRows(const LayerSpec& layer) {
  if (!layer.stores_kv()) return {};
  return {{0, std::int64_t{layer.heads.num_kv_heads} * layer.heads.head_size}};
}

std::vector<RowRange> ValueRows(const LayerSpec& layer) {
  return layer.heads.v_from_k ? std::vector<RowRange>() : KeyRows(layer);
}

std::vector<RowRange> GateRows(const LayerSpec& layer) {
  std::vector<RowRange> rows;
  if (!layer.heads.output_gate) return rows;
  const std::int64_t size = layer.heads.head_size;
  for (std::int64_t h = 0; h < layer.heads.num_heads; ++h) {
    rows.push_back({(2 * h + 1) * size, size});
  }
  return rows;
}

std::vector<RowRange> RowsOfQkvz(const LayerSpec& layer) {
  const RecurrentSpec& recurrent = layer.recurrent;
  const std::int64_t values = recurrent.value_columns() / recurrent.key_heads;  // of a key head
  const std::int64_t sizes[] = {recurrent.key_size, recurrent.key_size, values, values};
  return RowsByKeyHead(recurrent.key_heads, sizes);
}

std::vector<RowRange> RowsOfBa(const LayerSpec& layer) {
  const RecurrentSpec& recurrent = layer.recurrent;
  const std::int64_t sizes[] = {recurrent.heads / recurrent.key_heads,
                                recurrent.decay_columns() / recurrent.key_heads};
  return RowsByKeyHead(recurrent.key_heads, sizes);
}

std::vector<RowRange> RowsOfZxbcdt(const LayerSpec& layer) {
  const RecurrentSpec& recurrent = layer.recurrent;
  const std::int64_t values = recurrent.value_columns(), channels = recurrent.conv_channels;
  return {{values, channels}, {0, values}, {values + channels, recurrent.heads}};
}

void ForEachTensor(const LayerSpec& layer,
                   absl::FunctionRef<void(BlockKind, const TensorInfo&)> fn) {
  ForEachTensor([&](BlockKind block, const TensorInfo& info) {
    if (HasBlock(layer, block) && info.IsIn(layer)) fn(block, info);
  });
}

void ForEachTensor(absl::FunctionRef<void(BlockKind, const TensorInfo&)> fn) {
  NoLayer layer;
  ForEachRow(layer, [&](BlockKind block, const auto& row, auto&) { fn(block, row.info); });
}

std::string LayerPrefix(const TensorNames& names, std::size_t layer) {
  return absl::StrCat(names.layer_prefix, layer, ".");
}

std::string BlockPrefix(const TensorNames& names, BlockKind block, std::size_t layer) {
  const std::string prefix = LayerPrefix(names, layer);
  if (block != BlockKind::kMoe || names.moe.empty()) return prefix;
  return absl::StrCat(prefix, names.moe, ".");
}

std::string PartName(const TensorNames& names, const TensorInfo& info, const PartInfo& part,
                     absl::string_view block_prefix) {
  if (info.scope == nullptr || (names.*info.scope).empty()) {
    return absl::StrCat(block_prefix, names.*part.name);
  }
  return absl::StrCat(block_prefix, names.*info.scope, ".", names.*part.name);
}

ExpertStorage ExpertStorageOf(const TensorNames& names) {
  if (!names.down_stack.empty()) return ExpertStorage::kStacks;
  if (names.stacked_gate_up.empty()) return ExpertStorage::kPerExpert;
  return names.stacks_are_output_major ? ExpertStorage::kRowStacks
                                       : ExpertStorage::kTransposedStacks;
}

}  // namespace quire::models
