#pragma once

// wgmma, after the PTX ISA ("Asynchronous warpgroup level matrix instructions"). A product is
// remembered when it is issued and computed when its group is waited for: until then its
// accumulators are NaN, and shared memory that is overwritten too early gives wrong sums.

#include <cstdint>

namespace quire::cuda_emulator {

// Columns 8 .. 256. `a_registers` is null when A lies in shared memory, at descriptor `a`.
void IssueProduct(float* d, std::uint32_t columns, bool is_bf16, bool transposed_b, std::uint64_t a,
                  const std::uint32_t* a_registers, std::uint64_t b, bool accumulate);
void FenceProducts();
void CommitProducts();
// Computes all but the newest `pending` groups. All 128 threads of the warpgroup meet here.
void WaitProducts(std::uint32_t pending);

}  // namespace quire::cuda_emulator
