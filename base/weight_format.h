#pragma once

// Quantized weight matrices of 8 and 4 bits, as readers and quantizers produce them for
// kernels/linear to pack. A shape (QuantizedShape, Fp8Shape) states the dimensions of a
// matrix, its element format and the size of the groups that share a scale. A row (QuantizedRow,
// Fp8Row) has the weights of one output feature.
//
// Place:   between formats/ and models/, which produce the rows, and kernels/linear, which packs
//          and multiplies them.
// Threads: plain values.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire {

// Element format of a weight matrix.
enum class WeightFormat : std::uint8_t {
  kPlain,    // unquantized; PackedLinear states the dtype
  kInt8,     // -128..127 times a scale per output feature, or per feature and group of inputs
  kFp8E4M3,  // e4m3 times a scale per output feature, or per feature and group of inputs
  kInt4,     // -8..7 times a scale per output feature and group of inputs
  kFp4E2M1,  // e2m1 times a power of two per feature and group of 32 inputs (mxfp4); CUDA only
};
absl::string_view WeightFormatName(WeightFormat format);

struct QuantizedShape {
  WeightFormat format;  // kInt8 or kInt4; on GPUs also kFp8E4M3 and kFp4E2M1
  std::uint32_t n;      // output features
  std::uint32_t k;      // inputs, at most 65536
  // Number of inputs that share a scale, a divisor of k. For kInt8 it is k (one scale per feature),
  // 16, 32, 64 or 128. For kInt4 it is 32, 64 or 128.
  std::uint32_t group;
  // If true, a weight is scale * q + min, with q >= 0. `group` must then be one of the fixed sizes
  // above, even if it equals k.
  bool has_min = false;
  // Only with has_min: minimums are integers (scaled zero points), and a weight is scale * (q +
  // min). This product is exact if the scale is exact in f16.
  bool has_zero_points = false;
  // Groups of inputs follow an act-order permutation that is stored with the weights: packed input
  // j multiplies x[act_order[j]]. If has_min, then has_zero_points is required.
  bool has_act_order = false;
  // Only for kFp8E4M3: the rows of activations x are quantized to e4m3 before the product
  // (kernels/linear/fp8_rows.h).
  bool quantizes_activations = false;
  // Only with quantizes_activations on GPUs: the matrix may be stored row-major, which the device's
  // fp8 matrix product needs. Only Linear supports such a matrix, and only with bf16 x.
  bool allows_row_major = false;

  // True if there is one f32 scale per feature instead of one scale per group.
  bool scale_per_feature() const {
    return (format == WeightFormat::kInt8 || format == WeightFormat::kFp8E4M3) && group == k &&
           !has_min;
  }
  std::uint32_t num_groups() const { return (k + group - 1) / group; }
};

// Returns INVALID_ARGUMENT, naming the field, if CPUs do not support the shape.
absl::Status CheckQuantizedShape(const QuantizedShape& shape);

// The weights of one output feature. A reader fills in the memory that the spans refer to.
struct QuantizedRow {
  // [k]. kInt8: -128 .. 127; with has_min the bytes 0 .. 255. kInt4: -8 .. 7; with has_min 0 .. 15.
  // kFp8E4M3: e4m3 bytes without NaN. kFp4E2M1: e2m1 codes 0 .. 15.
  std::span<std::int8_t> q;
  // [num_groups]. Scales of groups are rounded to f16, or to bf16 for kFp4E2M1.
  std::span<float> scales;
  // [num_groups], rounded like scales; empty without has_min. With has_zero_points, integers in
  // -2048 .. 2048, which f16 represents exactly; on GPUs in -255 .. 0.
  std::span<float> mins;
};

struct Fp8Shape {
  std::uint32_t n;  // output features
  std::uint32_t k;  // inputs
  // Number of inputs that share a scale: k, or a multiple of 4. The last group may be shorter.
  std::uint32_t group;
  bool quantizes_activations = false;  // as in QuantizedShape

  std::uint32_t num_groups() const { return (k + group - 1) / group; }
};

// Returns INVALID_ARGUMENT, naming the field, if a field violates its rule.
absl::Status CheckFp8Shape(const Fp8Shape& shape);

// The weights of one output feature. A reader fills in the memory that the spans refer to.
struct Fp8Row {
  std::span<std::uint8_t> codes;  // [k], e4m3 without NaN
  std::span<float> scales;        // [num_groups], at most FLT_MAX / 448
};

}  // namespace quire
