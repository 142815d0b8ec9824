#pragma once

// Matrices that safetensors files hold as small codes, with scales, zero points and the order of
// groups in tensors beside them: GPTQ, AWQ, compressed-tensors, fp8 and mxfp4. A weight is
//
//   (code - zero point) * scale        integers: one f32 product of exact factors
//   value of the code * scale          e4m3 and e2m1: the same
//
// Sources of the layouts: the packing code of github.com/AutoGPTQ/AutoGPTQ,
// github.com/casper-hansen/AutoAWQ and github.com/vllm-project/compressed-tensors; DeepSeek-V3's
// README on fp8; OCP Microscaling Formats 1.0.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/weight_format.h"
#include "formats/tensors/safetensors.h"

namespace quire::formats {

// Where the code of output feature n and input k lies. Words are 32 bits with 32 / bits codes, the
// lowest bits first.
enum class CodeLayout : std::uint8_t {
  kWordsOfInputs,   // [K * bits / 32, N]: neighbours along K
  kWordsOfOutputs,  // [K, N / 8]: eight outputs in the order 0 2 4 6 1 3 5 7
  kWordsOfRows,     // [N, ceil(K * bits / 32)]: neighbours along K
  kSignedBytes,     // [N, K] of -128 .. 127; codes are 128 more
  kE4M3,            // [N, K]
  kE2M1Blocks       // [N, K / 32, 16]: two codes in a byte, the low half first
};

// Where the zero point of output feature n and group g lies, for codes as above.
enum class ZeroLayout : std::uint8_t {
  kNone,                       // half of the range of codes
  kWordsOfOutputs,             // [G, N * bits / 32]: neighbours along N
  kWordsOfOutputsInterleaved,  // [G, N / 8] in the order 0 2 4 6 1 3 5 7
  kWordsOfColumns,             // [ceil(N * bits / 32), G]: neighbours along N
  kSignedBytes                 // [N, G]; zero points are 128 more
};

// The tensors of one matrix and how they are read. The shapes were checked by the function that
// made it.
struct QuantizedParts {
  StoredTensor codes;
  StoredTensor scales;                // f32, f16, bf16, or bytes of exponents (e8m0)
  std::optional<StoredTensor> zeros;  // none with ZeroLayout::kNone
  std::optional<StoredTensor> order;  // I32 [K]: the group of each input; none: k / group
  std::vector<StoredTensor> unused;   // belong to the matrix and change nothing

  CodeLayout code_layout = CodeLayout::kSignedBytes;
  ZeroLayout zero_layout = ZeroLayout::kNone;
  std::uint32_t bits = 8;
  std::int32_t zero_offset = 0;        // added to a stored zero point
  bool needs_zeros_symmetric = false;  // each must be half of the range
  std::int64_t rows = 0;               // N; of all matrices of a stack
  std::int64_t columns = 0;            // K
  std::int64_t group = 0;              // inputs that share a scale; the last group may be short
  // The scale of output feature n and group g is element n / rows_per_scale * row_stride +
  // g * group_stride.
  std::int64_t rows_per_scale = 1;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
};

// Place:      made when a checkpoint is opened (join_quantized.h); StoredTensor::quantized of the
//             matrix that it stands for.
// Invariants: scales are finite and no weight but a NaN code overflows f32; groups are in range.
// Threads:    immutable.
// Lifetime:   the bytes belong to the files of the checkpoint.
class QuantizedTensor {
 public:
  // Reads scales, zero points and order, but not the codes. Returns INVALID_ARGUMENT that names the
  // tensor, the element and its value.
  static absl::StatusOr<std::shared_ptr<const QuantizedTensor>> Create(QuantizedParts parts);

  const QuantizedParts& parts() const { return parts_; }
  std::size_t codes_bytes() const { return parts_.codes.bytes.size(); }
  // All tensors that it was made of.
  std::vector<const StoredTensor*> Sources() const;

  // Row `row` of all rows. REQUIRES: out holds K values.
  void Row(std::int64_t row, std::span<float> out) const;
  // One value, for who reads columns.
  float Value(std::int64_t row, std::int64_t column) const;
  // Whether each value of the row is finite.
  bool IsFiniteRow(std::int64_t row) const;

  // The type that holds every value without loss: bf16 when scales are powers of two, else f32.
  DType plain_dtype() const { return plain_dtype_; }

  // How the integer kernels hold the matrix without loss; nothing when they cannot: e4m3, an order
  // with groups of different sizes, scales that f16 lacks, more than 65536 inputs.
  //
  //   symmetric int8 with a scale per output feature   int8, any scale
  //   symmetric integers in groups                     int4 or int8, groups of at most 128
  //   with zero points                                 the same with has_zero_points
  //   e2m1 blocks                                      int8 groups of 32, twice the values
  //   inputs whose groups follow no order              any of these in groups, with has_act_order
  const std::optional<QuantizedShape>& integer_shape() const { return integer_shape_; }
  // Inputs group by group, those of a group ascending; empty unless integer_shape() has an order.
  std::span<const std::uint32_t> order() const { return order_; }
  // One row in that form. REQUIRES: integer_shape() is set and `out` has its sizes.
  void IntegerRow(std::int64_t row, const QuantizedRow& out) const;

  // Whether codes are e2m1 with a scale for 32 inputs that is a power of two, and one row of these.
  // REQUIRES: is_e2m1(), K codes and K / 32 scales.
  bool is_e2m1() const { return parts_.code_layout == CodeLayout::kE2M1Blocks; }
  void E2M1Row(std::int64_t row, std::span<std::uint8_t> codes, std::span<float> scales) const;

  // How the e4m3 kernels hold it: codes and scales as they are. Nothing for other codes, and for
  // groups that are no multiple of 4.
  const std::optional<Fp8Shape>& fp8_shape() const { return fp8_shape_; }
  // One row in that form. REQUIRES: fp8_shape() is set and `out` has its sizes.
  void Fp8Row(std::int64_t row, const quire::Fp8Row& out) const;

 private:
  // What the scales allow, found while they are checked.
  struct ScaleTraits {
    bool fit_f16 = true;            // all that an integer form would hold
    bool are_powers_of_two = true;  // of a size that keeps every product in bf16
  };

  explicit QuantizedTensor(QuantizedParts parts) : parts_(std::move(parts)) {}

  absl::StatusOr<ScaleTraits> CheckScales() const;
  absl::Status CheckZeros();
  absl::Status CheckOrder();
  void SortInputs();
  std::optional<QuantizedShape> ChooseShape(const ScaleTraits& traits) const;
  std::optional<Fp8Shape> ChooseFp8Shape() const;
  bool IsInteger() const;
  std::int64_t NumGroups() const;
  float Scale(std::int64_t element) const;
  float ScaleOf(std::int64_t row, std::int64_t group) const;
  std::int32_t ZeroOf(std::int64_t row, std::int64_t group) const;
  std::uint8_t CodeAt(std::int64_t row, std::int64_t column) const;
  // Codes of a row, 0 .. 2^bits - 1.
  void Codes(std::int64_t row, std::span<std::uint8_t> out) const;

  QuantizedParts parts_;
  bool are_zeros_symmetric_ = true;
  std::vector<std::uint32_t> order_;
  DType plain_dtype_ = DType::kF32;
  std::optional<QuantizedShape> integer_shape_;
  std::optional<Fp8Shape> fp8_shape_;
};

}  // namespace quire::formats
