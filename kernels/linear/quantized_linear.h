#pragma once

// Integer weight matrices, and on GPUs e4m3 and e2m1 too: how they come to be, and what they
// compute. Linear (linear.h) multiplies with them like with any other.
//
// A weight is scale * q, scale * q + min or scale * (q + min), with a scale (and min) per output
// feature or per group of inputs of it. On the CPU activations are quantised to int8 as they come
// in (for kInt4 by powers of two), and products are summed as integers inside a group, so every
// instruction set with fused multiply-add gets the same bits. GPUs round no activation: q + min
// becomes bf16 without loss.

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/int_linear.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// CheckQuantizedShape (base/weight_format.h) for GPUs. Other than there: n and without an order k
// up to INT32_MAX, k a multiple of 8; no groups of 16, mins in steps only; kFp8E4M3 with groups of
// k or a multiple of 64, of which the last may be short, and kFp4E2M1 with groups of 32. Rows are
// rounded for kFp8E4M3 of up to 65536 inputs.
absl::Status CheckCudaQuantizedShape(const QuantizedShape& shape);
// Whether compute capability 9.0 multiplies codes of such a matrix by codes of x, as long as the
// driver maps it.
bool HasProductOfCodes(const QuantizedShape& shape);
// What PackQuantizedRows will allocate. REQUIRES: CheckQuantizedShape accepts the shape.
std::int64_t QuantizedBytes(const QuantizedShape& shape);
// On a GPU, in bytes. REQUIRES: CheckCudaQuantizedShape accepts the shape.
struct CudaQuantizedParts {
  std::int64_t codes = 0;
  std::int64_t scales = 0;  // and zero points
  std::int64_t act_order = 0;
};
CudaQuantizedParts CudaQuantizedPartsOf(const QuantizedShape& shape);
// Of all parts.
std::int64_t CudaQuantizedBytes(const QuantizedShape& shape);
// What the parts take of a WeightMemory.
std::int64_t CudaQuantizedRoom(const QuantizedShape& shape);

// Packs a matrix row by row. `source` fills row `row` of [0, n) and is called once for each, from
// several threads; with has_act_order its values lie in the order given. Returns INVALID_ARGUMENT as
// CheckQuantizedShape or CheckCudaQuantizedShape, for a min that GPUs do not hold, or on the CPU
// for a scale of kInt4 that is not finite in f16; RESOURCE_EXHAUSTED. `memory`, which the CPU
// ignores, is where a GPU's matrix is put; null: in allocations of its own. REQUIRES: `order` is a
// permutation of [0, k) with has_act_order, else empty; `memory` is null or has CudaQuantizedRoom left.
absl::StatusOr<PackedLinear> PackQuantizedRows(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> act_order = {}, WeightMemory* memory = nullptr);

// What PackQuantizedRows allocates, all bytes but those of the order zero, for bytes that it once
// made of such a shape. Errors as there.
absl::StatusOr<PackedLinear> AllocateQuantizedLinear(const QuantizedShape& shape,
                                                     std::span<const std::uint32_t> act_order = {});

// Quantises one row without a min. kInt8: scale = largest magnitude M / 127, and every value is
// within half its scale. kInt4: the scale, of those tried, with the least sum of squared errors of
// the group, then raised until the group keeps its projection on what it was. Scales of groups are
// values of f16, and integers are chosen for the rounded scale.
// Below its normal numbers, M / 127 < 6.1e-5, f16 goes in steps of 2^-24: no scale but that of a
// group of zeros is less than that, and int8 is within M / 254 + 2^-25 even there. A group with a
// NaN or infinity has scale NaN.
void QuantizeRow(WeightFormat format, std::uint32_t group, std::span<const float> row,
                 const QuantizedRow& out);

// Grows the backend's scratch memory to what Linear needs for up to `num_rows` rows of up to `k`
// inputs in any integer format, in orders of their own only with `has_act_order`, so that no later call
// allocates. REQUIRES: the backend is the CPU.
void ReserveQuantizedLinear(const Backend& backend, std::uint32_t num_rows, std::uint32_t k,
                            bool has_act_order = false);
// What that takes of a backend without scratch memory.
std::int64_t QuantizedLinearScratchBytes(std::uint32_t num_rows, std::uint32_t k,
                                         bool has_act_order = false);

// Returns the encoding of integers in this shape. `act_order` is empty without has_act_order.
WeightEncoding IntegerEncodingOf(const QuantizedShape& shape, DeviceBuffer act_order);

namespace internal {

// Linear of a CPU backend and integer weights, with the kernels of one instruction set; arguments
// are checked.
void LinearQuantized(const Backend& backend, const LinearParams& params,
                     const IntLinearKernels& kernels);

// PackQuantizedRows on a GPU. REQUIRES: CheckCudaQuantizedShape accepts the shape.
absl::StatusOr<PackedLinear> PackQuantizedCuda(
    const Backend& backend, const QuantizedShape& shape,
    absl::FunctionRef<void(std::uint32_t row, const QuantizedRow& out)> source,
    std::span<const std::uint32_t> order, WeightMemory* memory);

}  // namespace internal
}  // namespace quire::kernels
