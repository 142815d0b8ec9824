#pragma once

// Matrices of e4m3 codes on the CPU: how they come to be. Linear (linear.h) multiplies with them
// like with any other: codes are widened in registers, without loss, and activations stay f32.
//
// Source of the widening by a move of bits and a power of two: the conversion of f16 by F. Giesen,
// fgiesen.wordpress.com, 2012.

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// What PackFp8Rows will allocate. REQUIRES: CheckFp8Shape accepts the shape.
std::int64_t Fp8Bytes(const Fp8Shape& shape);

// Packs a matrix row by row. `source` fills row `row` of [0, n) and is called once for each, from
// several threads. Returns INVALID_ARGUMENT as CheckFp8Shape, or RESOURCE_EXHAUSTED. REQUIRES: the
// backend is the CPU.
absl::StatusOr<PackedLinear> PackFp8Rows(
    const Backend& backend, const Fp8Shape& shape,
    absl::FunctionRef<void(std::uint32_t row, const Fp8Row& out)> source);

// What PackFp8Rows allocates, all bytes zero, for bytes that it once made of such a shape. Errors
// as there.
absl::StatusOr<PackedLinear> AllocateFp8Linear(const Fp8Shape& shape);

// Scratch memory (Backend::op_workspace) that Linear uses with such weights for up to `num_rows`
// rows of up to `k` inputs.
std::int64_t Fp8LinearScratchBytes(std::uint32_t num_rows, std::uint32_t k);

namespace internal {

// What LinearSimd wants x of e4m3 weights multiplied by; exact below 2^80.
inline constexpr float kFp8InputScale = 0x1p48f;

// Linear with such weights on the CPU: x is multiplied once for all panels, into the backend's
// scratch memory, at most 4 MiB of it or 8 rows at a time.
void LinearFp8(const Backend& backend, const LinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
