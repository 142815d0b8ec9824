#include "models/weights/stored_rows.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "formats/tensors/quantized_tensor.h"

namespace quire::models {
namespace {

// Elements per work item of the scan for non-finite values.
constexpr std::int64_t kScanElements = std::int64_t{1} << 16;

bool IsGgmlQuantized(const formats::StoredTensor& tensor) {
  return tensor.blocks != formats::GgmlType::kNone;
}

std::int64_t RowElements(const formats::StoredTensor& tensor) {
  return tensor.shape.back();
}

std::span<const std::byte> RowBytes(const formats::StoredTensor& tensor, std::int64_t row) {
  const std::int64_t k = RowElements(tensor);
  const std::int64_t bytes = IsGgmlQuantized(tensor) ? formats::GgmlRowBytes(tensor.blocks, k)
                                                     : k * DTypeSize(tensor.dtype);
  return tensor.bytes.subspan(static_cast<std::size_t>(row * bytes),
                              static_cast<std::size_t>(bytes));
}

// Returns the stored index of row `row` of a matrix, or of element `row` of a vector.
std::int64_t StoredIndex(const formats::StoredTensor& tensor, std::int64_t row) {
  if (!tensor.is_interleaved) return row;
  const std::int64_t half = tensor.shape[0] / 2;
  return row < half ? 2 * row : 2 * (row - half) + 1;
}

// F16::ToFloat for finite values, without branches so that compilers vectorize it.
float FiniteF16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const float magnitude =
      std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x7fffu) << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

// Returns element i of an unquantized tensor. The bytes need not be aligned.
float Element(const formats::StoredTensor& tensor, std::int64_t i) {
  const std::byte* at = tensor.bytes.data() + i * DTypeSize(tensor.dtype);
  if (tensor.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return tensor.dtype == DType::kBF16 ? BF16{bits}.ToFloat() : F16{bits}.ToFloat();
}

// True if one of `count` values is NaN or infinite, that is, has all exponent bits set.
template <typename Bits, Bits kExponent>
bool HasNonFinite(const std::byte* values, std::int64_t count) {
  Bits found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, values + i * static_cast<std::int64_t>(sizeof(Bits)), sizeof(Bits));
    found = static_cast<Bits>(found | ((bits & kExponent) == kExponent ? 1 : 0));
  }
  return found != 0;
}

bool HasNonFinite(const formats::StoredTensor& tensor, std::int64_t begin, std::int64_t end) {
  const std::byte* values = tensor.bytes.data() + begin * DTypeSize(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kBF16:
      return HasNonFinite<std::uint16_t, 0x7f80>(values, end - begin);
    case DType::kF16:
      return HasNonFinite<std::uint16_t, 0x7c00>(values, end - begin);
    default:
      return HasNonFinite<std::uint32_t, 0x7f800000>(values, end - begin);
  }
}

// Returns the smallest unit in [0, units) for which is_bad(unit) is true, or `units`.
template <typename IsBad>
std::int64_t FindFirstBad(const kernels::Backend& backend, std::int64_t units, double work,
                          IsBad&& is_bad) {
  std::atomic<std::int64_t> first{units};
  backend.ParallelFor(units, work, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      if (!is_bad(unit)) continue;
      std::int64_t seen = first.load();
      while (unit < seen && !first.compare_exchange_weak(seen, unit)) {
      }
      return;
    }
  });
  return first.load();
}

absl::Status NotFiniteError(const formats::StoredTensor& tensor, std::int64_t element,
                            float value) {
  return absl::InvalidArgumentError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": element ", element, " of ",
                   tensor.num_elements(), " is ", value, "; weights must be finite"));
}

// Returns the error for a row with an element beyond f16. REQUIRES: the row has such an element.
absl::Status BeyondF16Error(const formats::StoredTensor& tensor, std::int64_t row) {
  std::vector<float> wide(static_cast<std::size_t>(RowElements(tensor)));
  WidenRow(tensor, row, wide);
  const auto at = std::find_if(wide.begin(), wide.end(), [](float value) {
    return !std::isfinite(F16::FromFloat(value).ToFloat());
  });
  QUIRE_CHECK(at != wide.end());
  return absl::InvalidArgumentError(absl::StrCat(
      tensor.file, ": tensor ", tensor.name, ": element ",
      row * RowElements(tensor) + (at - wide.begin()), " of ", tensor.num_elements(), " is ", *at,
      ", which exceeds the range of f16; set model.quantization to \"none\" to store "
      "the tensor as f32"));
}

bool IsFiniteRow(const formats::StoredTensor& tensor, std::int64_t row) {
  if (tensor.quantized != nullptr && !tensor.is_transposed) {
    return tensor.quantized->IsFiniteRow(tensor.first_row + StoredIndex(tensor, row));
  }
  std::vector<float> values(static_cast<std::size_t>(RowElements(tensor)));
  WidenRow(tensor, row, values);
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

absl::Status CheckQuantizedFinite(const formats::StoredTensor& tensor,
                                  const kernels::Backend& backend) {
  const std::int64_t k = RowElements(tensor);
  const std::int64_t rows = tensor.num_elements() / k;
  const std::int64_t bad =
      FindFirstBad(backend, rows, static_cast<double>(k),
                   [&](std::int64_t row) { return !IsFiniteRow(tensor, row); });
  if (bad == rows) return absl::OkStatus();
  std::vector<float> values(static_cast<std::size_t>(k));
  WidenRow(tensor, bad, values);
  const std::int64_t column =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); }) -
      values.begin();
  return NotFiniteError(tensor, bad * k + column, values[static_cast<std::size_t>(column)]);
}

}  // namespace

void WidenRow(const formats::StoredTensor& tensor, std::int64_t row, std::span<float> out) {
  const std::int64_t stored = StoredIndex(tensor, row);
  if (tensor.quantized != nullptr && !tensor.is_transposed) {
    return tensor.quantized->ReadRow(tensor.first_row + stored, out);
  }
  if (tensor.quantized != nullptr) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = tensor.quantized->ReadValue(tensor.first_row + static_cast<std::int64_t>(i), stored);
    }
    return;
  }
  if (tensor.is_transposed || (tensor.is_interleaved && tensor.shape.size() == 1)) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i);
      out[i] = Element(tensor, tensor.is_transposed ? column * tensor.shape[0] + stored
                                                    : StoredIndex(tensor, column));
    }
    return;
  }
  const std::span<const std::byte> bytes = RowBytes(tensor, stored);
  if (IsGgmlQuantized(tensor)) return formats::DequantizeRow(tensor.blocks, bytes, out);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return;
  }
  const bool bf16 = tensor.dtype == DType::kBF16;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof(bits));
    out[i] = bf16 ? BF16{bits}.ToFloat() : FiniteF16(bits);
  }
}

absl::Status ConvertRows(const formats::StoredTensor& tensor, DType dtype, std::int64_t begin,
                         std::int64_t end, const kernels::Backend& backend, void* out) {
  QUIRE_CHECK(dtype == DType::kF32 || dtype == DType::kF16);
  const auto k = static_cast<std::size_t>(RowElements(tensor));
  const double work = static_cast<double>(k) / 2;
  if (dtype == DType::kF32) {
    auto* const to = static_cast<float*>(out);
    backend.ParallelFor(end - begin, work, [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t row = first; row < last; ++row) {
        WidenRow(tensor, begin + row, {to + static_cast<std::size_t>(row) * k, k});
      }
    });
    return absl::OkStatus();
  }
  auto* const to = static_cast<F16*>(out);
  const std::int64_t bad = FindFirstBad(backend, end - begin, work, [&](std::int64_t row) {
    std::vector<float> wide(k);
    WidenRow(tensor, begin + row, wide);
    bool is_bad = false;
    for (std::size_t i = 0; i < k; ++i) {
      const F16 half = F16::FromFloat(wide[i]);
      to[static_cast<std::size_t>(row) * k + i] = half;
      is_bad |= !std::isfinite(half.ToFloat());
    }
    return is_bad;
  });
  return bad == end - begin ? absl::OkStatus() : BeyondF16Error(tensor, begin + bad);
}

MatrixForm StoredForm(const formats::StoredTensor& tensor) {
  if (!tensor.is_quantized()) return {.dtype = tensor.dtype};
  if (tensor.quantized != nullptr) {
    const auto& fp8 = tensor.quantized->fp8_shape();
    if (fp8 && !tensor.is_transposed) {
      return {.format = WeightFormat::kFp8E4M3, .group = fp8->group == fp8->k ? 0 : fp8->group};
    }
    const auto& shape = tensor.quantized->integer_shape();
    if (!shape || tensor.is_transposed) return PlainForm(tensor);
    return {.format = shape->format,
            .group = shape->scale_per_feature() ? 0 : shape->group,
            .has_min = shape->has_min,
            .has_zero_points = shape->has_zero_points,
            .has_act_order = shape->has_act_order};
  }
  const auto shape =
      formats::IntegerShapeOf(tensor.blocks, static_cast<std::uint32_t>(tensor.shape[0]),
                              static_cast<std::uint32_t>(tensor.shape[1]));
  return {.format = shape.format, .group = shape.group, .has_min = shape.has_min};
}

absl::StatusOr<MatrixForm> CudaMatrixForm(const formats::StoredTensor& tensor) {
  const MatrixForm form = StoredForm(tensor);
  if (!tensor.is_quantized() || tensor.is_transposed) return form;
  const auto n = static_cast<std::uint32_t>(tensor.shape[0]);
  const auto k = static_cast<std::uint32_t>(tensor.shape[1]);
  if (tensor.quantized == nullptr) {
    return kernels::CheckCudaQuantizedShape(form.ShapeOf(n, k)).ok() ? form : PlainForm(tensor);
  }
  const MatrixForm gpu_form = tensor.quantized->is_e2m1()
                                  ? MatrixForm{.format = WeightFormat::kFp4E2M1, .group = 32}
                                  : form;
  // The possible reasons why QuantizedTensor has no integer or fp8 form.
  std::string why =
      "it has groups of different sizes, scales beyond f16, more than 65536 inputs, or e4m3 blocks "
      "with a number of inputs that is not a multiple of 4";
  if (!gpu_form.is_plain()) {
    const absl::Status checked = kernels::CheckCudaQuantizedShape(gpu_form.ShapeOf(n, k));
    if (checked.ok()) return gpu_form;
    why = std::string(checked.message());
  }
  return absl::UnimplementedError(
      absl::StrCat(tensor.file, ": tensor ", tensor.name, ": no GPU kernel supports ",
                   "quantization_config ", tensor.type, " for this matrix: ", why,
                   "; set model.quantization to \"none\" to dequantize the matrix"));
}

MatrixForm PlainForm(const formats::StoredTensor& tensor) {
  return {.dtype = tensor.quantized != nullptr ? tensor.quantized->plain_dtype() : DType::kF32};
}

void ReadPlainRow(const formats::StoredTensor& tensor, DType dtype, std::int64_t row,
                  std::byte* out) {
  const auto k = static_cast<std::size_t>(RowElements(tensor));
  if (dtype == DType::kF32) return WidenRow(tensor, row, {reinterpret_cast<float*>(out), k});
  QUIRE_CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  std::vector<float> values(k);
  WidenRow(tensor, row, values);
  auto* const halves = reinterpret_cast<std::uint16_t*>(out);
  for (std::size_t i = 0; i < k; ++i) {
    halves[i] =
        dtype == DType::kBF16 ? BF16::FromFloat(values[i]).bits : F16::FromFloat(values[i]).bits;
  }
}

void ReadQuantizedRow(const formats::StoredTensor& tensor, const MatrixForm& form, std::int64_t row,
                      const QuantizedRow& out) {
  const auto raw_bytes = [&out]() -> std::span<std::uint8_t> {
    return {reinterpret_cast<std::uint8_t*>(out.q.data()), out.q.size()};
  };
  if (form.is_fp8()) return ReadFp8Row(tensor, row, {raw_bytes(), out.scales});
  if (form.format == WeightFormat::kFp4E2M1) {
    return tensor.quantized->ReadE2M1Row(tensor.first_row + StoredIndex(tensor, row), raw_bytes(),
                                         out.scales);
  }
  if (tensor.is_quantized() && form == StoredForm(tensor)) {
    if (tensor.quantized != nullptr) {
      return tensor.quantized->ReadIntegerRow(tensor.first_row + StoredIndex(tensor, row), out);
    }
    return formats::DecodeRow(tensor.blocks, RowBytes(tensor, row), out);
  }
  std::vector<float> values(out.q.size());
  WidenRow(tensor, row, values);
  const auto k = static_cast<std::uint32_t>(values.size());
  kernels::QuantizeRow(form.format, form.group == 0 ? k : form.group, values, out);
}

void ReadFp8Row(const formats::StoredTensor& tensor, std::int64_t row, const quire::Fp8Row& out) {
  tensor.quantized->ReadFp8Row(tensor.first_row + StoredIndex(tensor, row), out);
}

absl::Status CheckFinite(const formats::StoredTensor& tensor, const kernels::Backend& backend) {
  if (tensor.is_quantized()) return CheckQuantizedFinite(tensor, backend);
  const std::int64_t elements = tensor.num_elements();
  const std::int64_t units = (elements + kScanElements - 1) / kScanElements;
  const std::int64_t bad =
      FindFirstBad(backend, units, static_cast<double>(kScanElements) / 4, [&](std::int64_t unit) {
        return HasNonFinite(tensor, unit * kScanElements,
                            std::min(elements, (unit + 1) * kScanElements));
      });
  for (std::int64_t i = bad * kScanElements; i < elements; ++i) {
    const float value = Element(tensor, i);
    if (!std::isfinite(value)) return NotFiniteError(tensor, i, value);
  }
  return absl::OkStatus();
}

}  // namespace quire::models
