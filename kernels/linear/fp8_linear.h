#pragma once

// Packs e4m3 matrices for the CPU. Linear (linear.h) widens e4m3 values in registers without loss.
// Activations stay f32, or are first rounded to e4m3 (fp8_rows.h).
//
// Values are widened by a bit shift and a multiplication by a power of two, as in the f16
// conversion by F. Giesen, fgiesen.wordpress.com, 2012.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Returns the bytes that PackFp8Rows allocates. REQUIRES: CheckFp8Shape accepts the shape.
std::int64_t Fp8Bytes(const Fp8Shape& shape);

// Packs a matrix row by row. `source` fills a row, and is called once for each row in [0, n), from
// several threads. Returns INVALID_ARGUMENT like CheckFp8Shape, or RESOURCE_EXHAUSTED. REQUIRES:
// the backend is the CPU.
absl::StatusOr<PackedLinear> PackFp8Rows(
    const Backend& backend, const Fp8Shape& shape,
    absl::FunctionRef<void(std::uint32_t row, const Fp8Row& out)> source);

// Allocates a zeroed matrix with the layout of PackFp8Rows. The caller fills it with the bytes of a
// matrix that PackFp8Rows packed earlier for the same shape. Errors are those of PackFp8Rows.
absl::StatusOr<PackedLinear> AllocateFp8Linear(const Fp8Shape& shape);

// Returns the bytes of scratch memory (Backend::op_workspace) that Linear uses with e4m3 weights
// for up to `num_rows` rows of up to `k` inputs.
std::int64_t Fp8LinearScratchBytes(std::uint32_t num_rows, std::uint32_t k);

namespace internal {

// Factor of x for e4m3 weights: LinearSimd expects x multiplied by it. The multiplication is exact
// for |x| < 2^80.
inline constexpr float kFp8InputScale = 0x1p48f;

// Computes Linear with e4m3 weights on the CPU. Scales x into the backend's scratch memory, once
// for all panels. Processes as many rows at a time as fit into 4 MiB, rounded down to a multiple of
// 8, but at least 8.
void LinearFp8(const Backend& backend, const LinearParams& params);

}  // namespace internal
}  // namespace quire::kernels
