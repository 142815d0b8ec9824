#pragma once

// The formats of weights in memory: the values of model.quantization, and the resulting form of a
// matrix.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quantized_linear.h"

namespace quire::models {

// The values of model.quantization. All but the first two quantize the matrices of the layers at
// load time, and the output head to int8_g32. They do not convert the embedding, norms, biases and
// matrices of TensorKind::kUnconverted.
enum class Quantization : std::uint8_t {
  // The stored format is kept: GGML blocks and integers as integers, e4m3 as e4m3, e2m1 as e2m1 on
  // GPUs and as integers on CPUs, other dtypes unquantized.
  kAuto,
  kNone,  // unquantized; quantized weights become f32, or bf16 if that is lossless
  kInt8,  // one scale per output feature
  kInt8G32,
  kInt8G64,
  kInt8G128,
  kInt4G32,
  kInt4G64,
  kInt4G128,
};
inline constexpr Quantization kAllQuantizations[] = {
    Quantization::kAuto,    Quantization::kNone,    Quantization::kInt8,
    Quantization::kInt8G32, Quantization::kInt8G64, Quantization::kInt8G128,
    Quantization::kInt4G32, Quantization::kInt4G64, Quantization::kInt4G128};

// Returns the name in configuration and messages, such as "auto" or "int8_g32".
absl::string_view QuantizationName(Quantization quantization);
std::optional<Quantization> QuantizationFromName(absl::string_view name);

// The format of a matrix in memory.
struct MatrixForm {
  WeightFormat format = WeightFormat::kPlain;
  DType dtype = DType::kInvalid;       // with kPlain
  std::uint32_t group = 0;             // inputs that share a scale; 0: one scale per output feature
  bool has_min = false;                // a weight is scale * q + min
  bool has_zero_points = false;        // a weight is scale * (q + min); only with has_min
  bool has_act_order = false;          // has an act-order permutation of its inputs
  bool quantizes_activations = false;  // with is_fp8(): activations are quantized to e4m3
  bool allows_row_major = false;       // QuantizedShape::allows_row_major

  bool is_plain() const { return format == WeightFormat::kPlain; }
  bool is_fp8() const { return format == WeightFormat::kFp8E4M3; }
  bool is_integer() const { return format == WeightFormat::kInt8 || format == WeightFormat::kInt4; }
  // REQUIRES: is_fp8().
  Fp8Shape Fp8ShapeOf(std::uint32_t n, std::uint32_t k) const {
    return {.n = n,
            .k = k,
            .group = group == 0 ? k : group,
            .quantizes_activations = quantizes_activations};
  }
  // REQUIRES: is_integer(). On a GPU, !is_plain() suffices.
  QuantizedShape ShapeOf(std::uint32_t n, std::uint32_t k) const {
    return {.format = format,
            .n = n,
            .k = k,
            .group = group == 0 ? k : group,
            .has_min = has_min,
            .has_zero_points = has_zero_points,
            .has_act_order = has_act_order,
            .quantizes_activations = quantizes_activations,
            .allows_row_major = allows_row_major};
  }
  friend bool operator==(const MatrixForm&, const MatrixForm&) = default;
};

// Returns a name such as "bf16", "fp8_e4m3", "fp8_e4m3_g128", "fp4_e2m1_g32", "int8", "int4_g32" or
// "int4_g32_min". has_zero_points gives "int4_g32_zero", has_act_order "int4_g32_order" or
// "int4_g32_zero_order".
std::string FormName(const MatrixForm& form);

// The output head is converted differently from the matrices of layers.
enum class MatrixRole : std::uint8_t { kLayer, kHead };

// Returns the form that matrices are converted to, or nullopt if they stay as stored.
std::optional<MatrixForm> ConvertedForm(Quantization quantization, MatrixRole role);

}  // namespace quire::models
