#include "models/weights/slot_finder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "formats/tensors/quantized_tensor.h"
#include "models/weights/stored_rows.h"

namespace quire::models {
namespace {

// Sums of integer products on CPUs fit 32 bits up to this number of inputs (QuantizedShape).
constexpr std::int64_t kMaxIntegerInputs = 65536;

bool IsWeightType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool HaveSameActOrder(const formats::StoredTensor& a, const formats::StoredTensor& b) {
  return std::ranges::equal(a.quantized->act_order(), b.quantized->act_order());
}

}  // namespace

absl::StatusOr<const formats::StoredTensor*> SlotFinder::Find(const std::string& name,
                                                              std::span<const Extent> extents,
                                                              bool keeps_unit_dimensions) {
  const formats::StoredTensor* tensor = checkpoint_.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " is missing"));
  }
  std::vector<std::int64_t> shape;
  std::vector<absl::string_view> keys;
  for (const Extent& extent : extents) {
    shape.push_back(extent.size);
    keys.push_back(extent.keys);
  }
  const auto significant = [keeps_unit_dimensions](std::vector<std::int64_t> dimensions) {
    if (!keeps_unit_dimensions) std::erase(dimensions, 1);
    return dimensions;
  };
  if (significant(tensor->shape) != significant(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor->file, ": tensor ", name, ": shape is ", tensor->ShapeText(),
                     ", the configuration requires [", absl::StrJoin(shape, ", "), "] (",
                     absl::StrJoin(keys, ", "), ")"));
  }
  if (!IsWeightType(tensor->dtype) && !(tensor->is_quantized() && shape.size() >= 2)) {
    return absl::UnimplementedError(absl::StrCat(tensor->file, ": tensor ", name, ": dtype ",
                                                 tensor->type,
                                                 " is not supported (supported: F32, F16, BF16)"));
  }
  used_.insert(tensor);
  return tensor;
}

absl::StatusOr<const formats::StoredTensor*> SlotFinder::FindVector(
    const std::string& name, std::span<const Extent> extents) {
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* tensor,
                         Find(name, extents, /*keeps_unit_dimensions=*/false));
  if (tensor->is_quantized()) {
    return absl::UnimplementedError(absl::StrCat(tensor->file, ": tensor ", name, ": type ",
                                                 tensor->type,
                                                 " is not supported (supported: F32, F16, BF16)"));
  }
  if (tensor->shape.size() == 1) return tensor;
  formats::StoredTensor flat = *tensor;
  flat.shape = {tensor->num_elements()};
  return AddPiece(std::move(flat));
}

const formats::StoredTensor* SlotFinder::AddPiece(formats::StoredTensor piece) {
  pieces_.push_back(std::make_shared<const formats::StoredTensor>(std::move(piece)));
  return pieces_.back().get();
}

absl::StatusOr<MatrixForm> FormChooser::FormOf(const formats::StoredTensor& tensor,
                                               MatrixRole role) const {
  const std::optional<MatrixForm> converted = ConvertedForm(target_.quantization, role);
  if (!converted && !tensor.is_quantized()) return StoredForm(tensor);
  if (!converted && target_.quantization == Quantization::kNone) return PlainForm(tensor);
  if (!converted && target_.cuda) return CudaMatrixForm(tensor);
  const MatrixForm form = converted ? *converted : StoredForm(tensor);
  if (!form.is_integer()) return form;
  QUIRE_RETURN_IF_ERROR(CheckInputs(tensor, form, role));
  return form;
}

absl::StatusOr<std::vector<MatrixSlot>> FormChooser::Matrices(
    const std::vector<const formats::StoredTensor*>& parts, MatrixRole role) const {
  std::vector<MatrixSlot> matrices;
  for (const formats::StoredTensor* part : parts) {
    QUIRE_ASSIGN_OR_RETURN(const MatrixForm form, FormOf(*part, role));
    const bool both_plain = !matrices.empty() && matrices.back().form.is_plain() && form.is_plain();
    const bool is_like =
        !matrices.empty() && matrices.back().form == form &&
        (!form.has_act_order || HaveSameActOrder(*matrices.back().parts[0], *part));
    if (!is_like && !both_plain) {
      matrices.push_back(MatrixSlot{});
    }
    MatrixSlot& matrix = matrices.back();
    if (matrix.parts.empty()) matrix.form = form;
    matrix.k = static_cast<std::uint32_t>(part->shape[1]);
    if (matrix.form != form) matrix.form.dtype = DType::kF32;
    matrix.parts.push_back(part);
    matrix.n += static_cast<std::uint32_t>(part->shape[0]);
  }
  return matrices;
}

absl::Status FormChooser::CheckInputs(const formats::StoredTensor& tensor, const MatrixForm& form,
                                      MatrixRole role) const {
  const std::int64_t k = tensor.shape[1];
  std::string needs;
  if (form.group != 0 && k % form.group != 0) {
    needs = absl::StrCat("a multiple of ", form.group);
  } else if (target_.cuda && k % 8 != 0) {
    needs = "on GPUs a multiple of 8";
  } else if (!target_.cuda && k > kMaxIntegerInputs) {
    needs = absl::StrCat("at most ", kMaxIntegerInputs);
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": model.quantization ",
                   QuantizationName(target_.quantization),
                   role == MatrixRole::kHead
                       ? absl::StrCat(" converts the output head to ", FormName(form), ", which")
                       : "",
                   " needs ", needs, " inputs, this matrix has ", k));
}

namespace {

// Cuts a tensor into the picked ranges of rows, or of elements of a vector.
std::vector<const formats::StoredTensor*> CutRows(SlotFinder& finder,
                                                  const formats::StoredTensor& whole,
                                                  std::span<const RowRange> picked) {
  if (picked.size() == 1 && picked[0].count == whole.shape[0]) return {&whole};
  // If `whole` is quantized, readers use first_row and only the size of `bytes`.
  const std::int64_t row_bytes = static_cast<std::int64_t>(whole.bytes.size()) / whole.shape[0];
  std::vector<const formats::StoredTensor*> pieces;
  for (const RowRange& rows : picked) {
    formats::StoredTensor piece = whole;
    piece.name = absl::StrCat(whole.name, "[", rows.first, " to ", rows.first + rows.count, "]");
    piece.shape[0] = rows.count;
    piece.bytes = whole.bytes.subspan(static_cast<std::size_t>(rows.first * row_bytes),
                                      static_cast<std::size_t>(rows.count * row_bytes));
    piece.first_row = whole.first_row + rows.first;
    pieces.push_back(finder.AddPiece(std::move(piece)));
  }
  return pieces;
}

}  // namespace

absl::StatusOr<LinearSlot> FindLinear(SlotFinder& finder, const FormChooser& chooser,
                                      const std::vector<Part>& parts, const Extent& columns,
                                      MatrixRole role) {
  LinearSlot slot;
  slot.k = static_cast<std::uint32_t>(columns.size);
  std::vector<const formats::StoredTensor*> weights;
  const auto append = [&](const formats::StoredTensor& found, const Part& part,
                          std::vector<const formats::StoredTensor*>* to) {
    const RowRange all{0, part.rows.size};
    const std::span<const RowRange> picked =
        part.picked_rows.empty() ? std::span(&all, 1) : std::span(part.picked_rows);
    for (const formats::StoredTensor* piece : CutRows(finder, found, picked)) to->push_back(piece);
  };
  for (const Part& part : parts) {
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* weight,
                           finder.Find(absl::StrCat(part.name, ".weight"), {part.rows, columns}));
    append(*weight, part, &weights);
    if (!part.has_bias) continue;
    QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* bias,
                           finder.Find(absl::StrCat(part.name, ".bias"), {part.rows}));
    append(*bias, part, &slot.biases);
  }
  for (const formats::StoredTensor* weight : weights) {
    slot.n += static_cast<std::uint32_t>(weight->shape[0]);
  }
  QUIRE_ASSIGN_OR_RETURN(slot.matrices, chooser.Matrices(weights, role));
  return slot;
}

absl::StatusOr<VectorSlot> FindNorm(SlotFinder& finder, const NormSpec& norm,
                                    const std::string& name, const Extent& elements) {
  if (norm.kind == NormKind::kNone) return VectorSlot{};
  QUIRE_ASSIGN_OR_RETURN(const formats::StoredTensor* tensor,
                         finder.Find(absl::StrCat(name, ".weight"), {elements}));
  return VectorSlot{{tensor}, norm.weight_offset, norm.weight_scale};
}

}  // namespace quire::models
