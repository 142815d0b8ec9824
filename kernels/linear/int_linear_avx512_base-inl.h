// Definitions that the parts of the integer linear kernel for AVX-512 share
// (int_linear_avx512-inl.h).

#pragma once

#include <immintrin.h>

#include <cstdint>

#define QUIRE_INLINE inline __attribute__((always_inline))

namespace quire::kernels::internal {
namespace {

constexpr std::uint32_t kPanel = 16;

QUIRE_INLINE std::uint32_t Least(std::uint32_t a, std::uint32_t b) {
  return a < b ? a : b;
}

// Returns the number of rows of the next block if `rows_left` rows are left.
QUIRE_INLINE std::uint32_t BlockRows(std::uint32_t rows_left) {
  return rows_left >= 8 ? 8 : rows_left >= 4 ? 4 : rows_left >= 2 ? 2 : 1;
}

QUIRE_INLINE __mmask16 FirstLanes(std::uint32_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << count) - 1);
}

}  // namespace
}  // namespace quire::kernels::internal
