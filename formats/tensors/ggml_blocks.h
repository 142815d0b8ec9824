#pragma once

// Weights in GGML's block formats, as GGUF files hold them: a row is a run of blocks, each of which
// has scales of its own and 32 or 256 small integers.
//
// Source: the layout tables of github.com/ggml-org/llama.cpp, ggml/src/ggml-common.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "base/weight_format.h"

namespace quire::formats {

// The element types that are read, as numbered in files.
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
  bool is_read;            // false: a format that files may have and that this version refuses
  std::int64_t elements;   // of a block; 1: not a block format
  std::int64_t bytes;      // of a block
};

// Null for a number that no format has.
const GgmlFormat* FindGgmlFormat(std::uint32_t number);
// REQUIRES: `type` is not kNone.
const GgmlFormat& FormatOf(GgmlType type);
// "F32, F16, Q4_0, ...", for messages.
std::string ReadableGgmlTypes();

// Bytes of a row of k elements. REQUIRES: k is a multiple of the block's elements.
std::int64_t GgmlRowBytes(GgmlType type, std::int64_t k);

// The values of one row, row.size() == GgmlRowBytes(type, out.size()). Products are exact, so that
// only the addition of a minimum rounds. A NaN or infinite scale gives values that are not finite.
void DequantizeRow(GgmlType type, std::span<const std::byte> row, std::span<float> out);

// How a matrix of [n, k] weights is held by the integer kernels: without loss in q, with scales and
// mins that kernels round to f16.
//
//   Q8_0 int8 g32;  Q4_0 int4 g32;  Q4_1, Q4_K int4 g32 with mins;  Q5_0 int8 g32;
//   Q5_1, Q5_K int8 g32 with mins;  Q2_K int8 g16 with mins;  Q3_K, Q6_K int8 g16;  IQ4_NL, IQ4_XS
//   and, twice its values, MXFP4 int8 g32
//
// REQUIRES: `type` is a block format (elements > 1).
QuantizedShape IntegerShapeOf(GgmlType type, std::uint32_t n, std::uint32_t k);

// One row in that form. Scales and mins are exact in f32: those of Q2_K to Q6_K and IQ4_XS are
// products of a half and a small integer, which f16 rounds (or, from 65520 on, makes infinite), and
// those of MXFP4 powers of two, which f16 lacks from 2^16 on and below 2^-24. REQUIRES: as
// DequantizeRow, and the spans of `out` have the sizes of IntegerShapeOf.
void DecodeRow(GgmlType type, std::span<const std::byte> row, const QuantizedRow& out);

}  // namespace quire::formats
