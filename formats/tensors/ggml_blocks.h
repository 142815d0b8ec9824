#pragma once

// Dequantizes GGML's block formats of GGUF files. A row is a sequence of quantization blocks, each
// with separate scales and 32 or 256 small integers.
//
// Source: the layout tables of github.com/ggml-org/llama.cpp, ggml/src/ggml-common.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "base/weight_format.h"

namespace quire::formats {

// The supported element types. Values are those of the file format.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
  kNone = 0xffffffff,  // no such type
};

struct GgmlFormat {
  std::uint32_t number;
  absl::string_view name;  // "Q4_K"
  bool is_supported;       // false: known, but rejected
  std::int64_t elements;   // per block; 1: not a block format
  std::int64_t bytes;      // per block
};

// Returns null for an unknown number.
const GgmlFormat* FindGgmlFormat(std::uint32_t number);
// REQUIRES: `type` is not kNone.
const GgmlFormat& FormatOf(GgmlType type);
// Returns "F32, F16, Q4_0, ..." for messages.
std::string ReadableGgmlTypes();

// Returns the size of a row of k elements in bytes. REQUIRES: k is a multiple of the block size.
std::int64_t GgmlRowBytes(GgmlType type, std::int64_t k);

// Dequantizes one row. Products are exact, so only adding a min rounds. A NaN or infinite scale
// gives values that are not finite. REQUIRES: row.size() == GgmlRowBytes(type, out.size()).
void DequantizeRow(GgmlType type, std::span<const std::byte> row, std::span<float> out);

// Returns the shape in which the integer kernels represent a matrix of [n, k] weights. The
// quantized values q are exact. Kernels round scales and mins to f16.
//
//   Q8_0 int8 g32;  Q4_0 int4 g32;  Q4_1, Q4_K int4 g32 with mins;  Q5_0 int8 g32;
//   Q5_1, Q5_K int8 g32 with mins;  Q2_K int8 g16 with mins;  Q3_K, Q6_K int8 g16;
//   IQ4_NL, IQ4_XS int8 g32;  MXFP4 int8 g32 with q twice the e2m1 values
//
// REQUIRES: `type` is a block format (elements > 1).
QuantizedShape IntegerShapeOf(GgmlType type, std::uint32_t n, std::uint32_t k);

// Decodes one row to the shape of IntegerShapeOf. Scales and mins are exact in f32, but not always
// in f16. For Q2_K to Q6_K and IQ4_XS they are products of an f16 and a small integer. The scales
// of MXFP4 are powers of two, of which f16 can represent 2^-24 to 2^15. REQUIRES: as DequantizeRow,
// and the spans of `out` have the sizes of IntegerShapeOf.
void DecodeRow(GgmlType type, std::span<const std::byte> row, const QuantizedRow& out);

}  // namespace quire::formats
