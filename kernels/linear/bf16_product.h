#pragma once

// The product of bf16 tiles. This header has only plain types. Its implementations are compiled for
// different instruction sets, and for a shared inline function the linker could keep the copy for
// the widest instruction set.

#include <cstdint>

namespace quire::kernels::internal {

// A product of rows of x and panels of weights, over some of the inputs. Strides are in elements.
struct Bf16Product {
  const std::uint16_t* x;  // [num_row_tiles][num_blocks][16][32], tiles of rows x_stride apart
  std::int64_t x_stride;
  const std::uint16_t* w;  // [num_panels][num_blocks][16][16][2], panels w_stride apart
  std::int64_t w_stride;
  float* totals;  // [num_panels][num_row_tiles][16 rows][16 features], aligned to 64 bytes
  std::int64_t num_row_tiles;
  std::int64_t num_panels;
  std::int64_t num_blocks;  // blocks of 32 inputs
  // Number of rows that are used, at most 16 * num_row_tiles. All other rows of x may have any
  // values.
  std::int64_t num_rows;
  bool is_first;  // true: totals start at 0; false: the products are added to the totals
  // True: the rows were ordered by kBf16OrderAvx512Bf16. Only kBf16MultiplyAvx512Bf16 reads such
  // rows.
  bool x_is_ordered = false;
  // True: the weights have ordered pairs (packed_linear.h), and x_is_ordered is true. Only
  // kBf16MultiplyAvx512Bf16 reads them.
  bool w_is_ordered = false;
  // The address that the next product probably reads first. It is only prefetched and may be beyond
  // the matrix. Null: none.
  const std::uint16_t* next_w = nullptr;
};

// Adds the products of all blocks to the totals (bf16_linear.h). Totals of rows from num_rows on
// are unspecified.
using Bf16MultiplyFn = void (*)(const Bf16Product& product);

// Multiplies in AMX tiles. Null in builds without AMX.
extern const Bf16MultiplyFn kBf16MultiplyAmx;
// Multiplies with the instruction vdpbf16ps. Null in builds without it.
extern const Bf16MultiplyFn kBf16MultiplyAvx512Bf16;
// Orders one row of x in place for kBf16MultiplyAvx512Bf16, so that the work is not repeated for
// each group of panels. Blocks of a row are 16 * 32 elements apart. Null in builds without
// vdpbf16ps.
using Bf16OrderFn = void (*)(std::uint16_t* x, std::int64_t num_blocks);
extern const Bf16OrderFn kBf16OrderAvx512Bf16;
// Returns kBf16MultiplyAmx or kBf16MultiplyAvx512Bf16, whichever is faster on the selected
// instruction set. Returns null if neither is available, or if Bf16MultiplyVectors is faster.
Bf16MultiplyFn ChosenBf16Multiply();
// Returns the function that multiplies in vectors of the selected instruction set. Null if the
// instruction set has no fused multiply-add that flushes subnormal numbers.
Bf16MultiplyFn Bf16MultiplyVectors();

}  // namespace quire::kernels::internal
