#pragma once

// wgmma, after the PTX ISA ("Asynchronous warpgroup level matrix instructions"). A product is
// remembered when it is issued and computed when its group is waited for: until then its
// accumulators are NaN, and shared memory that is overwritten too early gives wrong sums.

#include <cstdint>

#include "base/dtype.h"

namespace quire::cuda_emulator {

// A and B of one type. An instruction multiplies 32 bytes of K: 16 of bf16 or f16, 32 of e4m3.
// Sums of 16-bit values are those of matrix.h. Of e4m3 a device keeps fewer bits, which decides how
// far sums may go before they are added up elsewhere; the model is made of what others report of
// such GPUs (DeepSeek-V3: about 14 bits): d and the 32 products are cut, towards zero, at 2^-13 of
// the power of two in the largest of them, then added exactly, and the sum is cut likewise.
struct ProductShape {
  std::uint32_t columns;  // 8 .. 256
  DType type;
  bool transposed_b;
  bool accumulate;
};
// `a_registers` is null when A lies in shared memory, at descriptor `a`.
void IssueProduct(float* d, const ProductShape& shape, std::uint64_t a,
                  const std::uint32_t* a_registers, std::uint64_t b);
void FenceProducts();
void CommitProducts();
// Computes all but the newest `pending` groups. All 128 threads of the warpgroup meet here.
void WaitProducts(std::uint32_t pending);

}  // namespace quire::cuda_emulator
