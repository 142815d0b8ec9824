#pragma once

// Matrices of 8 and 4 bits as those who read or quantise weights hand them to those who pack them:
// how an element is coded, which inputs share a scale, and one output feature of it.
//
// Place:   between formats/ and models/, which make such rows, and kernels/linear, which packs them
//          and says what it computes with them.
// Threads: values.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire {

// How the elements of a weight matrix are coded.
enum class WeightFormat : std::uint8_t {
  kPlain,    // a PackedLinear's dtype
  kInt8,     // -128..127 times a scale per output feature, or per group of inputs of it
  kFp8E4M3,  // e4m3 times a scale per output feature, or per group of inputs of it
  kInt4,     // -8..7 times a scale per output feature and group of inputs
  kFp4E2M1,  // e2m1 times a power of two per output feature and 32 inputs (mxfp4); CUDA only
};
absl::string_view WeightFormatName(WeightFormat format);

struct QuantizedShape {
  WeightFormat format;  // kInt8 or kInt4; on GPUs also kFp8E4M3 and kFp4E2M1
  std::uint32_t n;      // output features
  std::uint32_t k;      // inputs, at most 65536
  // Inputs that share a scale, a divisor of k. kInt8: k (one scale per feature), 16, 32, 64 or 128.
  // kInt4: 32, 64 or 128.
  std::uint32_t group;
  // A weight is scale * q + min and q is not negative. Not with one scale per feature, unless k is
  // itself one of the groups above.
  bool has_min = false;
  // With has_min: mins are whole steps, minus the zero points of formats that have them, and a
  // weight is scale * (q + min), without loss where f16 holds the scale.
  bool has_zero_points = false;
  // Groups are of inputs in an order of their own, which lies beside the weights: what is packed as
  // input j multiplies input order[j] of x.
  bool has_act_order = false;
  // kFp8E4M3: rows of x are rounded to e4m3 before the product (kernels/linear/fp8_rows.h).
  bool quantizes_activations = false;
  // With quantizes_activations, on GPUs: Linear alone multiplies, with bf16 x only, so that the matrix may
  // lie row by row where the device multiplies codes by codes.
  bool allows_row_major = false;

  // One f32 scale per feature instead of scales per group.
  bool scale_per_feature() const {
    return (format == WeightFormat::kInt8 || format == WeightFormat::kFp8E4M3) && group == k &&
           !has_min;
  }
  std::uint32_t num_groups() const { return (k + group - 1) / group; }
};

// INVALID_ARGUMENT that names what of the shape is not as above, for CPUs.
absl::Status CheckQuantizedShape(const QuantizedShape& shape);

// One output feature, as a source writes it.
struct QuantizedRow {
  // [k]. kInt8: -128 .. 127, with mins the bytes of 0 .. 255; kInt4: -8 .. 7, with mins 0 .. 15.
  // kFp8E4M3: codes without NaN. kFp4E2M1: codes of 0 .. 15.
  std::span<std::int8_t> q;
  // [num_groups]. Of groups rounded to f16, those of kFp4E2M1 to bf16.
  std::span<float> scales;
  // Likewise; empty without has_min. With has_zero_points integers of -2048 .. 2048, which f16 holds,
  // on GPUs of -255 .. 0.
  std::span<float> mins;
};

struct Fp8Shape {
  std::uint32_t n;  // output features
  std::uint32_t k;  // inputs
  // Inputs that share a scale: k, or a multiple of 4; the last group may be short.
  std::uint32_t group;
  bool quantizes_activations = false;  // as of QuantizedShape

  std::uint32_t num_groups() const { return (k + group - 1) / group; }
};

// INVALID_ARGUMENT that names what of the shape is not as above.
absl::Status CheckFp8Shape(const Fp8Shape& shape);

// One output feature, as a source writes it.
struct Fp8Row {
  std::span<std::uint8_t> codes;  // [k], e4m3 without NaN
  std::span<float> scales;        // [num_groups], at most the largest f32 / 448
};

}  // namespace quire
