#pragma once

// Quantized matrices of safetensors files. Codes, scales, zero points and group indices are
// separate tensors. The formats are GPTQ, AWQ, compressed-tensors, fp8 and mxfp4. A weight is
//
//   (code - zero point) * scale        integers: one f32 product of exact factors
//   value of the code * scale          e4m3 and e2m1: also one f32 product of exact factors
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

// Position of the code of output feature n and input k. A 32-bit word has 32 / bits codes, the
// first in the lowest bits.
enum class CodeLayout : std::uint8_t {
  // GPTQ, [K * bits / 32, N]: a word has codes of consecutive inputs
  kWordsOfInputs,
  // AWQ, [K, N / 8]: a word has codes of eight outputs, in the order 0 2 4 6 1 3 5 7
  kWordsOfOutputs,
  // compressed-tensors, [N, ceil(K * bits / 32)]: a word has codes of consecutive inputs
  kWordsOfInputsOutputMajor,
  kSignedBytes,  // [N, K] of -128 .. 127; a code is the byte plus 128
  kE4M3,         // [N, K]
  kE2M1Blocks    // [N, K / 32, 16]: a byte has two codes, the low nibble first
};

// Position of the zero point of output feature n and group g. Words are packed as in CodeLayout.
enum class ZeroLayout : std::uint8_t {
  kNone,  // every zero point is half of the range of codes
  // GPTQ, [G, N * bits / 32]: a word has consecutive outputs
  kWordsOfOutputs,
  // AWQ, [G, N / 8]: a word has eight outputs, in the order 0 2 4 6 1 3 5 7
  kWordsOfOutputsInterleaved,
  // compressed-tensors, [ceil(N * bits / 32), G]: a word has consecutive outputs
  kWordsOfOutputsOutputMajor,
  kSignedBytes  // [N, G]; a zero point is the byte plus 128
};

// The tensors of one matrix and their layout. The code that fills in the struct checks the shapes.
struct QuantizedParts {
  StoredTensor codes;
  StoredTensor scales;                // f32, f16, bf16, or exponent bytes (e8m0)
  std::optional<StoredTensor> zeros;  // nullopt with ZeroLayout::kNone
  // I32 [K]: the group of each input (act-order). nullopt: every `group` consecutive inputs form a
  // group.
  std::optional<StoredTensor> group_indices;
  std::vector<StoredTensor> unused;  // tensors of the matrix that do not affect its values

  CodeLayout code_layout = CodeLayout::kSignedBytes;
  ZeroLayout zero_layout = ZeroLayout::kNone;
  std::uint32_t bits = 8;
  std::int32_t zero_offset = 0;           // added to a stored zero point
  bool requires_symmetric_zeros = false;  // every zero point must be half of the range
  // N. In a stack of matrices, such as all experts of a layer, N counts the rows of all matrices.
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // K
  std::int64_t group = 0;    // inputs that share a scale; the last group may be shorter
  // The scale of output feature n and group g is element n / rows_per_scale * row_stride +
  // g * group_stride.
  std::int64_t rows_per_scale = 1;
  std::int64_t row_stride = 0;
  std::int64_t group_stride = 0;
};

// Place:      created for StoredTensor::quantized when a checkpoint is opened (join_quantized.h).
// Invariants: scales are finite, and so are all weights except those with the e4m3 code NaN. Group
//             indices are in range.
// Threads:    immutable.
// Lifetime:   the files of the checkpoint own the bytes.
class QuantizedTensor {
 public:
  // Reads scales, zero points and groups, but not the codes. Returns INVALID_ARGUMENT with the
  // tensor, the element and its value if one is invalid.
  static absl::StatusOr<std::shared_ptr<const QuantizedTensor>> Create(QuantizedParts parts);

  const QuantizedParts& parts() const { return parts_; }
  std::size_t codes_bytes() const { return parts_.codes.bytes.size(); }
  // Returns all stored tensors of the matrix.
  std::vector<const StoredTensor*> Sources() const;

  // Dequantizes a row. REQUIRES: `out` has K values.
  void ReadRow(std::int64_t row, std::span<float> out) const;
  // Dequantizes one value, for code that reads the matrix by columns.
  float ReadValue(std::int64_t row, std::int64_t column) const;
  // Returns whether all values of the row are finite.
  bool IsFiniteRow(std::int64_t row) const;

  // A type that represents every value exactly. It is bf16 for e4m3 and e2m1 codes whose scales are
  // powers of two in the range of bf16. Otherwise it is f32.
  DType plain_dtype() const { return plain_dtype_; }

  // The shape in which the integer kernels represent the matrix exactly. It is nullopt for e4m3
  // codes and for more than 65536 inputs. It is also nullopt for act-order groups of different
  // sizes, groups that are not a multiple of 16 inputs, and group scales that f16 cannot represent.
  //   symmetric int8 with a scale per output feature   int8, any scale
  //   symmetric integers in groups                     int4 or int8, groups of at most 128
  //   with zero points                                 as above, with has_zero_points
  //   e2m1 blocks                                      int8 groups of 32, values * 2, scales / 2
  //   act-order                                        any of these with groups, with has_act_order
  const std::optional<QuantizedShape>& integer_shape() const { return integer_shape_; }
  // Act-order permutation: the inputs sorted by group, ascending within a group. Empty unless
  // integer_shape()->has_act_order.
  std::span<const std::uint32_t> act_order() const { return order_; }
  // Reads one row in integer_shape(). REQUIRES: integer_shape() is set and `out` has its sizes.
  void ReadIntegerRow(std::int64_t row, const QuantizedRow& out) const;

  // Returns whether codes are e2m1 with a power-of-two scale per 32 inputs.
  bool is_e2m1() const { return parts_.code_layout == CodeLayout::kE2M1Blocks; }
  // Reads one row of e2m1 codes. REQUIRES: is_e2m1(), and the spans have K codes and K / 32 scales.
  void ReadE2M1Row(std::int64_t row, std::span<std::uint8_t> codes, std::span<float> scales) const;

  // The shape for the e4m3 kernels, which use codes and scales unchanged. It is nullopt for other
  // codes and for groups that are not a multiple of 4.
  const std::optional<Fp8Shape>& fp8_shape() const { return fp8_shape_; }
  // Reads one row in fp8_shape(). REQUIRES: fp8_shape() is set and `out` has its sizes.
  void ReadFp8Row(std::int64_t row, const quire::Fp8Row& out) const;

 private:
  // Properties of the scales, determined while they are checked.
  struct ScaleTraits {
    bool fit_f16 = true;  // f16 can represent every scale of the integer shape
    // Every scale is a power of two, and bf16 can represent every code times its scale.
    bool are_powers_of_two = true;
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
  // Reads the codes of a row, 0 .. 2^bits - 1.
  void ReadCodes(std::int64_t row, std::span<std::uint8_t> out) const;

  QuantizedParts parts_;
  bool are_zeros_symmetric_ = true;
  std::vector<std::uint32_t> order_;
  DType plain_dtype_ = DType::kF32;
  std::optional<QuantizedShape> integer_shape_;
  std::optional<Fp8Shape> fp8_shape_;
};

}  // namespace quire::formats
