#include "models/config/tensor_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::models {
namespace {

// An empty member type, to iterate over the rows of the tables without weights.
struct NoMemory {};
using NoLayer = LayerTensors<NoMemory, NoMemory>;

Extent ExtentInMla(Dim dim, const MlaSpec& mla) {
  const std::int64_t heads = mla.num_heads;
  switch (dim) {
    case Dim::kMlaQueries:
      return {heads * (mla.nope_size + mla.rope_size),
              "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"};
    case Dim::kMlaQueryRank:
      return {mla.q_lora_rank, "q_lora_rank"};
    case Dim::kMlaRank:
      return {mla.kv_lora_rank, "kv_lora_rank"};
    case Dim::kMlaRow:
      return {std::int64_t{mla.kv_lora_rank} + mla.rope_size, "kv_lora_rank + qk_rope_head_dim"};
    case Dim::kMlaNope:
      return {mla.nope_size, "qk_nope_head_dim"};
    case Dim::kMlaValue:
      return {mla.v_size, "v_head_dim"};
    case Dim::kMlaKeysAndValues:
      return {heads * (mla.nope_size + mla.v_size),
              "num_attention_heads * (qk_nope_head_dim + v_head_dim)"};
    case Dim::kMlaValues:
      return {heads * mla.v_size, "num_attention_heads * v_head_dim"};
    default:
      break;
  }
  QUIRE_CHECK(false);
  return {};
}

Extent ExtentInMoe(Dim dim, const MoeSpec& moe) {
  switch (dim) {
    case Dim::kExperts:
      return {moe.num_experts, "number of experts"};
    case Dim::kExpertInner:
      return {moe.expert.intermediate, "width of an expert"};
    case Dim::kTwoExpertInner:
      return {2 * std::int64_t{moe.expert.intermediate}, "2 * width of an expert"};
    case Dim::kSharedInner:
      return {moe.shared ? moe.shared->intermediate : 0, "width of the shared expert"};
    default:
      break;
  }
  QUIRE_CHECK(false);
  return {};
}

}  // namespace

std::array<BlockKind, 2> BlocksOf(const LayerSpec& layer) {
  std::array<BlockKind, 2> blocks = {BlockKind::kAttention, BlockKind::kMlp};
  switch (layer.attention) {
    case AttentionKind::kMla:
      blocks[0] = BlockKind::kMla;
      break;
    case AttentionKind::kHeads:
    case AttentionKind::kNone:
      break;
  }
  switch (layer.mlp) {
    case MlpKind::kMoe:
      blocks[1] = BlockKind::kMoe;
      break;
    case MlpKind::kDense:
    case MlpKind::kNone:
      break;
  }
  return blocks;
}

bool HasBlock(const LayerSpec& layer, BlockKind block) {
  const std::array<BlockKind, 2> blocks = BlocksOf(layer);
  return block == BlockKind::kNorms ||
         std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

Extent ExtentOf(Dim dim, std::uint32_t hidden, const LayerSpec& layer) {
  const AttentionSpec& heads = layer.heads;
  const std::int64_t queries = std::int64_t{heads.num_heads} * heads.head_size;
  const std::int64_t keys = std::int64_t{heads.num_kv_heads} * heads.head_size;
  switch (dim) {
    case Dim::kNone:
      return {0, ""};
    case Dim::kOne:
      return {1, "1"};
    case Dim::kHidden:
      return {hidden, "hidden_size"};
    case Dim::kHeads:
      return {heads.num_heads, "num_attention_heads"};
    case Dim::kHeadSize:
      return {heads.head_size, "head_dim"};
    case Dim::kQueries:
      return {queries, "num_attention_heads * head_dim"};
    case Dim::kKeys:
      return {keys, "num_key_value_heads * head_dim"};
    case Dim::kQkv:
      return {queries + 2 * keys, "(num_attention_heads + 2 * num_key_value_heads) * head_dim"};
    case Dim::kInner:
      return {layer.dense.intermediate, "intermediate_size"};
    case Dim::kTwoInner:
      return {2 * std::int64_t{layer.dense.intermediate}, "2 * intermediate_size"};
    case Dim::kExperts:
    case Dim::kExpertInner:
    case Dim::kTwoExpertInner:
    case Dim::kSharedInner:
      return ExtentInMoe(dim, layer.moe);
    case Dim::kMlaQueries:
    case Dim::kMlaQueryRank:
    case Dim::kMlaRank:
    case Dim::kMlaRow:
    case Dim::kMlaNope:
    case Dim::kMlaValue:
    case Dim::kMlaKeysAndValues:
    case Dim::kMlaValues:
      return ExtentInMla(dim, layer.mla);
  }
  QUIRE_CHECK(false);
  return {};
}

bool TensorInfo::IsIn(const LayerSpec& layer) const {
  if (is_present != nullptr && !is_present(layer)) return false;
  return norm == nullptr || norm(layer).kind != NormKind::kNone;
}

std::span<const PartInfo> TensorInfo::PartsIn(const TensorNames& names) const {
  if (fused.name != nullptr && !(names.*fused.name).empty()) return {&fused, 1};
  const auto end = std::find_if(parts.begin(), parts.end(),
                                [](const PartInfo& part) { return part.name == nullptr; });
  return {parts.begin(), end};
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
  if (info.scope == nullptr) return absl::StrCat(block_prefix, names.*part.name);
  return absl::StrCat(block_prefix, names.*info.scope, ".", names.*part.name);
}

ExpertStorage ExpertStorageOf(const TensorNames& names) {
  if (!names.gate_stack.empty()) return ExpertStorage::kStacks;
  return names.stacked_gate_up.empty() ? ExpertStorage::kPerExpert
                                       : ExpertStorage::kTransposedStacks;
}

}  // namespace quire::models
