#pragma once

// wgmma according to the PTX ISA ("Asynchronous warpgroup level matrix instructions"). A product is
// recorded at its issue and computed when its group is waited for. Until then its accumulators are
// NaN, and shared memory that is overwritten too early gives wrong sums.

#include <cstdint>

#include "base/dtype.h"

namespace quire::cuda_emulator {

// A and B have one type. An instruction multiplies 32 bytes of K: 16 elements of bf16 or f16, 32 of
// e4m3. Sums of 16-bit values are those of matrix.h. For e4m3 a device keeps fewer bits, which
// limits the length of sums before they are added elsewhere. The model follows published
// observations of such GPUs (DeepSeek-V3: about 14 bits). d and the 32 products are truncated
// towards zero at 2^-13 of the power of two in the largest of them, then added exactly, and the sum
// is truncated likewise.
struct ProductShape {
  std::uint32_t columns;  // 8 .. 256
  DType type;
  bool transposed_b;
  bool accumulate;
};
// `a_registers` is null if A is in shared memory, at descriptor `a`.
void IssueProduct(float* d, const ProductShape& shape, std::uint64_t a,
                  const std::uint32_t* a_registers, std::uint64_t b);
void FenceProducts();
void CommitProducts();
// Computes all but the newest `pending` groups. All 128 threads of the warpgroup meet here.
void WaitProducts(std::uint32_t pending);

}  // namespace quire::cuda_emulator
