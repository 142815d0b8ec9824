#include "models/weights/divided_checkpoint.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace quire::models {
namespace {

// What of a dimension a rank has.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t whole = 0;  // elements of the dimension
};

absl::Status CheckDivided(std::size_t layer, const LayerSpec& spec) {
  const struct {
    bool is_set;
    absl::string_view what;
  } refused[] = {
      {spec.attention != AttentionKind::kHeads, "attention other than over heads"},
      {spec.mlp != MlpKind::kDense, "mlp of experts"},
      {spec.heads.has_sinks, "heads.has_sinks"},
      {spec.heads.qk_norm.kind != NormKind::kNone &&
           spec.heads.qk_norm_scope != QkNormScope::kPerHead,
       "heads.qk_norm over all heads"},
  };
  for (const auto& field : refused) {
    if (!field.is_set) continue;
    return absl::UnimplementedError(
        absl::StrCat("layer ", layer, ": ", field.what, " is not divided among devices"));
  }
  return absl::OkStatus();
}

absl::Status DoesNotDivide(std::size_t layer, absl::string_view field, std::uint32_t value,
                           std::uint32_t size) {
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", field, " ", value,
                                                 " cannot be divided among ", size, " devices"));
}

// Elements [first, first + count) of what has `all`, each of `width` rows or columns.
Range RangeOf(std::uint32_t first, std::uint32_t count, std::uint32_t all, std::uint32_t width) {
  const std::int64_t unit = width;
  return {first * unit, (std::int64_t{first} + count) * unit, all * unit};
}

// Cuts the tensors of one checkpoint.
class Cutter {
 public:
  Cutter(const Checkpoint& whole, RankPart part) : part_(part), tensors_(whole.tensors()) {}

  // The rows of NAME.weight and, where it is there, the elements of NAME.bias.
  absl::Status KeepRows(const std::string& name, const Range& rows) {
    QUIRE_ASSIGN_OR_RETURN(formats::StoredTensor * weight, Find(name, ".weight", 0, rows));
    CutRows(weight, rows);
    const auto bias = Lookup(absl::StrCat(name, ".bias"));
    if (bias == tensors_.end()) return absl::OkStatus();
    QUIRE_RETURN_IF_ERROR(Check(*bias, 0, rows));
    CutRows(&*bias, rows);
    return absl::OkStatus();
  }

  // The columns of NAME.weight; NAME.bias on rank 0 only.
  absl::Status KeepColumns(const std::string& name, const Range& columns) {
    QUIRE_ASSIGN_OR_RETURN(formats::StoredTensor * weight, Find(name, ".weight", 1, columns));
    CutColumns(weight, columns);
    const auto bias = Lookup(absl::StrCat(name, ".bias"));
    if (bias != tensors_.end() && part_.rank != 0) tensors_.erase(bias);
    return absl::OkStatus();
  }

  Checkpoint Take() { return Checkpoint::FromTensors(std::move(tensors_), std::move(copies_)); }

 private:
  std::vector<formats::StoredTensor>::iterator Lookup(const std::string& name) {
    return std::find_if(tensors_.begin(), tensors_.end(),
                        [&](const formats::StoredTensor& tensor) { return tensor.name == name; });
  }

  absl::StatusOr<formats::StoredTensor*> Find(const std::string& name, absl::string_view suffix,
                                              std::size_t dimension, const Range& range) {
    const auto found = Lookup(absl::StrCat(name, suffix));
    if (found == tensors_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, suffix, " is missing"));
    }
    if (found->shape.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(found->file, ": tensor ", found->name,
                                                     ": shape is ", found->ShapeText(),
                                                     ", a matrix is needed"));
    }
    QUIRE_RETURN_IF_ERROR(Check(*found, dimension, range));
    return &*found;
  }

  static absl::Status Check(const formats::StoredTensor& tensor, std::size_t dimension,
                            const Range& range) {
    const std::string begin = absl::StrCat(tensor.file, ": tensor ", tensor.name, ": ");
    if (tensor.is_coded() || !tensor.is_row_by_row()) {
      return absl::UnimplementedError(
          absl::StrCat(begin, "type ", tensor.type, " is not divided among devices"));
    }
    if (tensor.shape.size() <= dimension || tensor.shape[dimension] != range.whole) {
      return absl::InvalidArgumentError(absl::StrCat(begin, "shape is ", tensor.ShapeText(),
                                                     ", the configuration asks for ", range.whole,
                                                     dimension == 0 ? " rows" : " columns"));
    }
    return absl::OkStatus();
  }

  // Of a vector, elements.
  static void CutRows(formats::StoredTensor* tensor, const Range& rows) {
    const auto row_bytes = static_cast<std::int64_t>(tensor->bytes.size()) / rows.whole;
    tensor->bytes =
        tensor->bytes.subspan(static_cast<std::size_t>(rows.begin * row_bytes),
                              static_cast<std::size_t>((rows.end - rows.begin) * row_bytes));
    tensor->shape[0] = rows.end - rows.begin;
  }

  void CutColumns(formats::StoredTensor* tensor, const Range& columns) {
    const std::int64_t element = DTypeSize(tensor->dtype);
    const std::int64_t kept = (columns.end - columns.begin) * element;
    std::vector<std::byte>& copy = copies_->emplace_back();
    copy.reserve(static_cast<std::size_t>(tensor->shape[0] * kept));
    for (std::int64_t row = 0; row < tensor->shape[0]; ++row) {
      const std::byte* const from =
          tensor->bytes.data() + (row * columns.whole + columns.begin) * element;
      copy.insert(copy.end(), from, from + kept);
    }
    tensor->bytes = copy;
    tensor->shape[1] = columns.end - columns.begin;
    tensor->is_mapped = false;
  }

  const RankPart part_;
  std::vector<formats::StoredTensor> tensors_;
  std::shared_ptr<std::deque<std::vector<std::byte>>> copies_ =
      std::make_shared<std::deque<std::vector<std::byte>>>();
};

}  // namespace

absl::StatusOr<ModelSpec> SpecOfPart(const ModelSpec& whole, RankPart part) {
  if (part.size == 0 || part.rank >= part.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", part.rank, " of ", part.size, " does not exist"));
  }
  ModelSpec spec = whole;
  if (part.is_whole()) return spec;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    QUIRE_RETURN_IF_ERROR(CheckDivided(i, layer));
    AttentionSpec& heads = layer.heads;
    if (heads.num_heads % part.size != 0) {
      return DoesNotDivide(i, "num_attention_heads", heads.num_heads, part.size);
    }
    if (heads.num_kv_heads % part.size != 0 && part.size % heads.num_kv_heads != 0) {
      return DoesNotDivide(i, "num_key_value_heads", heads.num_kv_heads, part.size);
    }
    if (layer.dense.intermediate % part.size != 0) {
      return DoesNotDivide(i, "intermediate_size", layer.dense.intermediate, part.size);
    }
    heads.num_heads /= part.size;
    heads.num_kv_heads = std::max(heads.num_kv_heads / part.size, 1u);
    layer.dense.intermediate /= part.size;
    if (part.rank == 0) continue;
    heads.o_bias = false;
    layer.dense.down_bias = false;
  }
  return spec;
}

absl::StatusOr<Checkpoint> CheckpointOfPart(const Checkpoint& whole, const ModelSpec& spec,
                                            const TensorNames& names, RankPart part) {
  QUIRE_ASSIGN_OR_RETURN(const ModelSpec own, SpecOfPart(spec, part));
  if (!names.qkv.empty() || !names.gate_up.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("tensors ", names.qkv.empty() ? names.gate_up : names.qkv,
                     " hold several matrices each and are not divided among devices"));
  }
  Cutter cutter(whole, part);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const AttentionSpec& all = spec.layers[i].heads;
    const AttentionSpec& held = own.layers[i].heads;
    const std::uint32_t inner = own.layers[i].dense.intermediate;
    const Range q =
        RangeOf(part.rank * held.num_heads, held.num_heads, all.num_heads, all.head_size);
    const Range kv = RangeOf(part.rank * all.num_kv_heads / part.size, held.num_kv_heads,
                             all.num_kv_heads, all.head_size);
    const Range mlp = RangeOf(part.rank * inner, inner, spec.layers[i].dense.intermediate, 1);
    const auto name = [&](absl::string_view slot) {
      return absl::StrCat(names.layer_prefix, i, ".", slot);
    };
    QUIRE_RETURN_IF_ERROR(cutter.KeepRows(name(names.q), q));
    QUIRE_RETURN_IF_ERROR(cutter.KeepRows(name(names.k), kv));
    QUIRE_RETURN_IF_ERROR(cutter.KeepRows(name(names.v), kv));
    QUIRE_RETURN_IF_ERROR(cutter.KeepColumns(name(names.o), q));
    QUIRE_RETURN_IF_ERROR(cutter.KeepRows(name(names.gate), mlp));
    QUIRE_RETURN_IF_ERROR(cutter.KeepRows(name(names.up), mlp));
    QUIRE_RETURN_IF_ERROR(cutter.KeepColumns(name(names.down), mlp));
  }
  return cutter.Take();
}

}  // namespace quire::models
