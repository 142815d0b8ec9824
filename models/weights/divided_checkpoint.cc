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
#include "models/config/tensor_table.h"

namespace quire::models {
namespace {

// The elements of a dimension that a rank stores.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t whole = 0;  // elements of the dimension
};

absl::Status CheckDivisible(std::size_t layer, const LayerSpec& spec) {
  const std::pair<bool, absl::string_view> properties[] = {
      {spec.attention == AttentionKind::kMla, "MLA"},
      {spec.attention == AttentionKind::kNone, "a layer without attention"},
      {spec.attention == AttentionKind::kRecurrent, "a recurrent layer"},
      {spec.attention == AttentionKind::kShortConv, "a short convolution"},
      {spec.heads.output_gate, "an output gate in the query projection"},
      {spec.has_moe(), "a mixture of experts"},
      {spec.kv_from_layer >= 0, "kv_from_layer"},
      {spec.mlp == MlpKind::kNone, "a layer without MLP"}};
  absl::string_view refused;
  for (const auto& [has, name] : properties) {
    if (refused.empty() && has) refused = name;
  }
  ForEachTensor(spec, [&](BlockKind, const TensorInfo& info) {
    if (refused.empty()) refused = info.indivisible_field;
  });
  if (refused.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("layer ", layer, ": ", refused,
                                               " cannot be divided among devices; use one device"));
}

absl::Status DoesNotDivideError(std::size_t layer, absl::string_view field, std::uint32_t value,
                                std::uint32_t size) {
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer, ": ", field, " ", value,
                                                 " cannot be divided among ", size, " devices"));
}

// Returns the elements of a dimension that a rank stores, given the sizes in the whole model and in
// the rank's part. If there are more ranks than KV heads, several ranks store the same KV head.
Range RangeOf(std::int64_t whole, std::int64_t own, RankPart part) {
  const std::int64_t begin = part.rank * whole / part.size / own * own;
  return {begin, begin + own, whole};
}

// Slices the tensors of a checkpoint to the part of a rank.
class TensorSlicer {
 public:
  TensorSlicer(const Checkpoint& whole, RankPart part) : part_(part), tensors_(whole.tensors()) {}

  // Keeps rows of NAME.weight and, if it exists, elements of NAME.bias.
  absl::Status KeepRows(const std::string& name, const Range& rows) {
    QUIRE_ASSIGN_OR_RETURN(formats::StoredTensor * weight, Find(name, ".weight", 0, rows));
    SliceRows(weight, rows);
    const auto bias = Lookup(absl::StrCat(name, ".bias"));
    if (bias == tensors_.end()) return absl::OkStatus();
    QUIRE_RETURN_IF_ERROR(Check(*bias, 0, rows));
    SliceRows(&*bias, rows);
    return absl::OkStatus();
  }

  // Keeps columns of NAME.weight, and NAME.bias on rank 0 only.
  absl::Status KeepColumns(const std::string& name, const Range& columns) {
    QUIRE_ASSIGN_OR_RETURN(formats::StoredTensor * weight, Find(name, ".weight", 1, columns));
    SliceColumns(weight, columns);
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
                                                     ", it must be a matrix"));
    }
    QUIRE_RETURN_IF_ERROR(Check(*found, dimension, range));
    return &*found;
  }

  static absl::Status Check(const formats::StoredTensor& tensor, std::size_t dimension,
                            const Range& range) {
    const std::string begin = absl::StrCat(tensor.file, ": tensor ", tensor.name, ": ");
    if (tensor.is_quantized() || !tensor.has_rows_in_order()) {
      return absl::UnimplementedError(absl::StrCat(
          begin, "type ", tensor.type, " cannot be divided among devices; use one device"));
    }
    if (tensor.shape.size() <= dimension || tensor.shape[dimension] != range.whole) {
      return absl::InvalidArgumentError(absl::StrCat(begin, "shape is ", tensor.ShapeText(),
                                                     ", the configuration requires ", range.whole,
                                                     dimension == 0 ? " rows" : " columns"));
    }
    return absl::OkStatus();
  }

  // Rows of a vector are its elements.
  static void SliceRows(formats::StoredTensor* tensor, const Range& rows) {
    const auto row_bytes = static_cast<std::int64_t>(tensor->bytes.size()) / rows.whole;
    tensor->bytes =
        tensor->bytes.subspan(static_cast<std::size_t>(rows.begin * row_bytes),
                              static_cast<std::size_t>((rows.end - rows.begin) * row_bytes));
    tensor->shape[0] = rows.end - rows.begin;
  }

  void SliceColumns(formats::StoredTensor* tensor, const Range& columns) {
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
    QUIRE_RETURN_IF_ERROR(CheckDivisible(i, layer));
    AttentionSpec& heads = layer.heads;
    if (heads.num_heads % part.size != 0) {
      return DoesNotDivideError(i, "num_attention_heads", heads.num_heads, part.size);
    }
    if (heads.num_kv_heads % part.size != 0 && part.size % heads.num_kv_heads != 0) {
      return DoesNotDivideError(i, "num_key_value_heads", heads.num_kv_heads, part.size);
    }
    if (layer.dense.intermediate % part.size != 0) {
      return DoesNotDivideError(i, "intermediate_size", layer.dense.intermediate, part.size);
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
  TensorSlicer slicer(whole, part);
  absl::Status status;
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    ForEachTensor(spec.layers[i], [&](BlockKind block, const TensorInfo& info) {
      if (!status.ok() || info.split == Split::kReplicated) return;
      const auto range = [&](Dim dim) {
        return RangeOf(ExtentOf(dim, spec.hidden, spec.layers[i]).size,
                       ExtentOf(dim, spec.hidden, own.layers[i]).size, part);
      };
      for (const PartInfo& tensor : info.PartsIn(names)) {
        // If a part picks no rows, the layer does not have the part.
        if (tensor.pick != nullptr && tensor.pick(spec.layers[i]).empty()) continue;
        if (tensor.name == info.fused.name) {
          status = absl::UnimplementedError(
              absl::StrCat("tensors ", names.*tensor.name,
                           " contain several matrices each and cannot be divided among devices"));
          return;
        }
        const std::string name = PartName(names, info, tensor, BlockPrefix(names, block, i));
        status.Update(info.split == Split::kRows ? slicer.KeepRows(name, range(tensor.rows))
                                                 : slicer.KeepColumns(name, range(info.columns)));
      }
    });
  }
  QUIRE_RETURN_IF_ERROR(status);
  return slicer.Take();
}

}  // namespace quire::models
