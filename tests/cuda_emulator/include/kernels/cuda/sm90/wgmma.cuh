#pragma once

// The host emulation of kernels/cuda/sm90/wgmma.cuh, with the same names and contracts.

#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/warpgroup.h"

namespace quire::kernels::cuda {

enum class SharedSwizzle : std::uint64_t { k128B = 1, k64B = 2, k32B = 3 };

inline std::uint64_t WgmmaDescriptor(const void* shared, std::uint32_t leading_bytes,
                                     std::uint32_t stride_bytes, SharedSwizzle swizzle) {
  const std::uint64_t at = cuda_emulator::SharedAddress(shared, 16, 16, "wgmma descriptor");
  return ((at & 0x3ffff) >> 4) | (static_cast<std::uint64_t>(leading_bytes >> 4) << 16) |
         (static_cast<std::uint64_t>(stride_bytes >> 4) << 32) |
         (static_cast<std::uint64_t>(swizzle) << 62);
}

inline void WgmmaFence() {
  cuda_emulator::FenceProducts();
}
inline void WgmmaCommit() {
  cuda_emulator::CommitProducts();
}
template <int kPending>
void WgmmaWait() {
  cuda_emulator::WaitProducts(kPending);
}

template <int kN>
void WgmmaPin(float (&)[kN]) {}
template <int kN>
void WgmmaPin(std::uint32_t (&)[kN]) {}
inline void WgmmaPin(std::uint64_t&) {}

template <int kN, int kTransB = 0>
void WgmmaShared(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(kN == 32 || kN == 64 || kN == 128 || kN == 256);
  cuda_emulator::IssueProduct(
      d,
      {.columns = kN, .type = DType::kBF16, .transposed_b = kTransB != 0, .accumulate = accumulate},
      a, nullptr, b);
}

template <int kN>
void WgmmaE4M3(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(kN == 64 || kN == 128);
  cuda_emulator::IssueProduct(
      d, {.columns = kN, .type = DType::kF8E4M3, .transposed_b = false, .accumulate = accumulate},
      a, nullptr, b);
}

template <int kN, int kTransB = 0>
void WgmmaRegisters(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                    bool accumulate) {
  static_assert(kN == 64 || kN == 128);
  cuda_emulator::IssueProduct(
      d,
      {.columns = kN, .type = DType::kBF16, .transposed_b = kTransB != 0, .accumulate = accumulate},
      0, a, b);
}

}  // namespace quire::kernels::cuda
