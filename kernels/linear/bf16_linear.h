#pragma once

// Matrix products with bf16 activations on the CPU, for weights of every format.
//
// x is rounded to bf16, to nearest even. A weight is PackedLinear::At rounded to bf16: unquantized
// weights are rounded to nearest even, dequantized weights to nearest with ties away from zero.
// Scales and minimums of quantized weights are finite. The inputs are divided into blocks of 32.
// The last block is padded with zeros. The total of an output starts at 0, and each block is added
// in order:
//
//   even = odd = 0
//   for the pairs j = 0 .. 15 of the block:
//     even = fma(x[2j], w[2j], even)
//     odd = fma(x[2j + 1], w[2j + 1], odd)
//   total = total + (even + odd)
//
// This is f32 arithmetic that reads subnormal operands as zeros and replaces subnormal results by
// zeros. The sign of a total that is zero is unspecified. With an act-order permutation, inputs are
// in the order of the packed weights. The result is y = (total + bias) + residual, in ordinary f32
// arithmetic.
//
// Except for NaNs, the totals have the bits of the AMX instruction tdpbf16ps (Intel's Software
// Developer's Manual, volume 2). All instruction sets and batch sizes therefore give the same bits.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backend/backend.h"
#include "kernels/linear/bf16_product.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {

// Replaces CpuActivations::kAuto by the activations for the chosen instruction set and weights.
// Returns other values unchanged. `weights_are_bf16` is true if every matrix in memory is
// unquantized bf16.
//
// With AMX, kAuto means kBF16 for all weights. With vdpbf16ps, it means kBF16 for bf16 weights:
// integer weights are faster with kInt8, and f32 or f16 weights would be rounded. Otherwise it
// means kInt8.
CpuActivations ResolveCpuActivations(CpuActivations activations, bool weights_are_bf16);

// Returns the bytes of Backend::op_workspace that Linear uses with bf16 activations for up to
// `num_rows` rows of up to `k` inputs.
std::int64_t Bf16LinearScratchBytes(std::uint32_t num_rows, std::uint32_t k);
// Returns the bytes of each Backend::workspace that Linear uses for these products.
std::int64_t Bf16LinearThreadBytes(std::uint32_t num_rows, std::uint32_t k);

namespace internal {

// Tile sizes of a product. Only kBlock affects bits, as part of the arithmetic above. A prototype
// was fastest with these sizes on an AMX machine. The weights of two panels and kPartInputs inputs
// fill L1 (32 KiB). The panels of a group share the rows of x that are in L2.
inline constexpr std::int64_t kBlock = 32;    // inputs of one tile product
inline constexpr std::int64_t kRowTile = 16;  // rows of a tile
// Number of inputs of a part. Weights are dequantized and multiplied one part at a time.
inline constexpr std::int64_t kPartInputs = 512;
// With ordered pairs (packed_linear.h) and up to kSequentialElements elements of x, which fit in an
// L2 of 1 MiB, all inputs are one part, so that memory is read in order. With more elements a part
// has kOrderedPartInputs inputs, so that the panels of a group use a part of x while it is in L2.
inline constexpr std::size_t kSequentialElements = std::size_t{384} << 10;
inline constexpr std::int64_t kOrderedPartInputs = 256;
inline constexpr std::int64_t kPanelGrain = 4;  // panels of the smallest group
inline constexpr std::int64_t kMaxTiles = 32;   // row tiles that share dequantized weights

// Returns the number of panels of a group. A thread computes a part for all panels of a group, then
// the next part.
constexpr std::int64_t GroupPanels(std::int64_t k) {
  return k < 4096 ? 4 : 16;
}
// Returns the bytes of the dequantized weights of a group, for kPartInputs inputs.
constexpr std::int64_t WeightScratchBytes(std::int64_t k) {
  return GroupPanels(k) * PackedLinear::kPanel * kPartInputs * 2;
}
// Returns the bytes of the totals of a group.
constexpr std::int64_t TotalBytes(std::int64_t num_rows, std::int64_t k) {
  const std::int64_t tiles = std::min(kMaxTiles, (num_rows + kRowTile - 1) / kRowTile);
  return GroupPanels(k) * tiles * PackedLinear::kPanel * kRowTile * 4;
}

// Computes Linear with bf16 activations. `multiply` computes the sums; null selects the Highway
// code. REQUIRES: the arguments were checked.
void LinearBf16(const Backend& backend, const LinearParams& params, Bf16MultiplyFn multiply);
// The reference implementation, for panels [panel_begin, panel_end).
void LinearBf16Cpu(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end);

// FlushedFma returns a * b + c, FlushedAdd a + b. Both round once, in the arithmetic of the file
// comment.
float FlushedFma(float a, float b, float c);
float FlushedAdd(float a, float b);

// The following functions are compiled for each instruction set.

// Writes a panel of integer weights as f32, [K][16]. Up to 7 inputs beyond K are written, too.
void DequantizePanelF32(const PackedLinear& weight, std::int64_t panel, float* to);

// Rounds row m of params.x to bf16. `to` is the row's first element in a tile of 16 rows,
// [ceil(K / 32)][16][32]. `row` is temporary memory for K floats.
void RoundRowToTile(const LinearParams& params, std::int64_t m, std::uint16_t* to, float* row);

// Returns true if LinearBf16 orders the rows for `multiply` (Bf16Product::x_is_ordered). `multiply`
// also accepts rows that are not ordered, but then orders them in each call.
bool NeedsOrderedRows(Bf16MultiplyFn multiply);

// Arguments of LinearBf16Panels, which computes panels [panel_begin, panel_end) for all rows.
// RoundRowToTile wrote `x`, which is ordered if NeedsOrderedRows(multiply). Rows of the last tile
// beyond num_rows may have any values. `scratch` has Bf16LinearThreadBytes and is aligned to 64
// bytes.
struct Bf16Panels {
  const LinearParams& params;
  const std::uint16_t* x;
  Bf16MultiplyFn multiply;
  std::byte* scratch;
};
void LinearBf16Panels(const Bf16Panels& job, std::int64_t panel_begin, std::int64_t panel_end);

}  // namespace internal
}  // namespace quire::kernels
