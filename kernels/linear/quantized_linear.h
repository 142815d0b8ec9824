#pragma once

// Packs integer weight matrices, and on GPUs also e4m3 and e2m1 matrices. Linear (linear.h)
// multiplies by them.
//
// A weight is scale * q, scale * q + min or scale * (q + min). There is one scale and one min per
// output feature or per group of its inputs. With int8 activations on the CPU, x is quantized to
// int8. If the weights are kInt4, the scales of x are powers of two. Products are summed as
// integers inside a group, so every instruction set with fused multiply-add computes the same bits.
// On GPUs activations are not quantized, and q + min is converted to bf16 without loss.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/int_linear.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Checks the shape like CheckQuantizedShape (base/weight_format.h), but with the limits of GPUs. n
// may be up to INT32_MAX, and so may k without an act-order permutation. k must be a multiple of 8.
// Groups of 16 and minimums are not supported, but zero points are. kFp8E4M3 has groups of k or of
// a multiple of 64, and its last group may be short. kFp4E2M1 has groups of 32. Activations are
// quantized only for kFp8E4M3 with k <= 65536.
absl::Status CheckCudaQuantizedShape(const QuantizedShape& shape);
// True if the fp8 kernel of compute capability 9.0 supports the shape. The kernel also needs a
// tensor map of the matrix, which the driver may fail to create.
bool SupportsFp8Product(const QuantizedShape& shape);
// Returns the bytes that PackQuantizedRows allocates. REQUIRES: CheckQuantizedShape accepts the
// shape.
std::int64_t QuantizedBytes(const QuantizedShape& shape);
// Bytes of each array of a matrix on a GPU. REQUIRES: CheckCudaQuantizedShape accepts the shape.
struct CudaQuantizedParts {
  std::int64_t codes = 0;
  std::int64_t scales = 0;  // scales and zero points
  std::int64_t act_order = 0;
  std::int64_t total() const { return codes + scales + act_order; }
};
CudaQuantizedParts CudaQuantizedPartsOf(const QuantizedShape& shape);
// Returns the bytes of a WeightMemory that the arrays of CudaQuantizedPartsOf use, padding
// included.
std::int64_t CudaQuantizedPaddedBytes(const QuantizedShape& shape);

// Packs a matrix row by row. `source` fills a row, and is called once for each row in [0, n), from
// several threads. If the shape has an act-order permutation, the values are permuted by
// `act_order`. On a GPU, `memory` provides the memory of the matrix. If it is null, each array is a
// separate allocation.
//
// Returns INVALID_ARGUMENT like CheckQuantizedShape or CheckCudaQuantizedShape. Also returns it on
// a GPU for an unsupported zero point, and on the CPU for a kInt4 scale that is not finite in f16.
// Returns RESOURCE_EXHAUSTED if memory cannot be allocated. REQUIRES: `act_order` is a permutation
// of [0, k) if the shape has_act_order, otherwise empty. `memory` is null or has
// CudaQuantizedPaddedBytes left.
absl::StatusOr<PackedLinear> PackQuantizedRows(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> act_order = {}, WeightMemory* memory = nullptr);

// Allocates the matrix that PackQuantizedRows would return, with all bytes zero except those of the
// permutation. The caller fills it with bytes that PackQuantizedRows packed earlier for the same
// shape. Errors are those of PackQuantizedRows.
absl::StatusOr<PackedLinear> AllocateQuantizedLinear(const QuantizedShape& shape,
                                                     std::span<const std::uint32_t> act_order = {});

// Quantizes one row without minimums. For kInt8, the scale is the largest magnitude M divided by
// 127, and the error of every value is at most half the scale. For kInt4, the scale is the
// candidate with the least sum of squared errors. This scale is then corrected so that the
// projection of the quantized group on the original group equals the original group. Scales of
// groups are f16 values, and integers are chosen for the rounded scale.
//
// Subnormal f16 scales, for M / 127 < 6.1e-5, have steps of 2^-24. Only groups of zeros have scales
// below 2^-24. The error of int8 with subnormal scales is at most M / 254 + 2^-25. A group with a
// NaN or infinity has the scale NaN.
void QuantizeRow(WeightFormat format, std::uint32_t group, std::span<const float> row,
                 const QuantizedRow& out);

// Returns the bytes of Backend::op_workspace that Linear uses with int8 activations, for up to
// `num_rows` rows of up to `k` inputs in any integer format. If `has_act_order`, they include
// memory for permuted rows.
std::int64_t QuantizedLinearScratchBytes(std::uint32_t num_rows, std::uint32_t k,
                                         bool has_act_order = false);

// Returns the bytes of each Backend::workspace that Linear uses with integer weights and f32
// activations. Permuted rows are in Backend::op_workspace (QuantizedLinearScratchBytes).
std::int64_t DequantizedThreadBytes(std::uint32_t k);

// Returns the encoding of integer weights of this shape. `act_order` is empty without
// has_act_order.
WeightEncoding IntegerEncodingOf(const QuantizedShape& shape, DeviceBuffer act_order);

namespace internal {

// Computes Linear on the CPU with integer weights and f32 activations. REQUIRES: the arguments were
// checked.
void LinearDequantized(const Backend& backend, const LinearParams& params);
// Computes Linear on the CPU with integer weights and int8 activations, using the kernels of one
// instruction set. REQUIRES: the arguments were checked.
void LinearQuantized(const Backend& backend, const LinearParams& params,
                     const IntLinearKernels& kernels);

// Implements PackQuantizedRows on a GPU. REQUIRES: CheckCudaQuantizedShape accepts the shape.
absl::StatusOr<PackedLinear> PackQuantizedCuda(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> order, WeightMemory* memory);

}  // namespace internal
}  // namespace quire::kernels
