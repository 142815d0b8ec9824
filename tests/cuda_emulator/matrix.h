#pragma once

// Tensor core instructions of a warp according to the PTX ISA: "Matrix fragments for mma.m16n8k16",
// "ldmatrix", "movmatrix". Products are exact, summed in double with k ascending, and rounded to
// f32 once per instruction. Every instruction shape thus gives the same sums.

#include <cstdint>

#include "base/dtype.h"

namespace quire::cuda_emulator {

// `count` is 1, 2 or 4. The `row` of lane l is row l % 8 of matrix l / 8.
void LoadMatrices(std::uint32_t* registers, std::uint32_t count, bool transposed, const void* row);
std::uint32_t TransposeMatrix(std::uint32_t fragment);
// d += A B for bf16 or f16 A [16, 16] and B [16, 8].
void MultiplyAdd(float* d, const std::uint32_t* a, const std::uint32_t* b, bool is_bf16);

inline float Element16(std::uint16_t bits, bool is_bf16) {
  return is_bf16 ? BF16{bits}.ToFloat() : F16{bits}.ToFloat();
}

// Compiles a function also for wider registers, which it uses if available. No instruction set
// fuses operations that are written separately, so the bits are equal.
#define QUIRE_VECTOR_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default"), optimize("fp-contract=off")))

// Sums that are computed together, in one wide register or several narrow ones.
inline constexpr std::uint32_t kSums = 8;
using Sums [[gnu::vector_size(kSums * sizeof(double))]] = double;

// sums[m][n] += sum over k of a[m][k] b[k][n], k ascending, for rows of `columns` elements, a
// multiple of 8.
void AddProduct(double* sums, const float* a, const double* b, std::uint32_t rows,
                std::uint32_t columns);

}  // namespace quire::cuda_emulator
