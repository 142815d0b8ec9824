#pragma once

// Tensor core instructions of a warp, after the PTX ISA: "Matrix fragments for mma.m16n8k16",
// "ldmatrix", "movmatrix". Products are exact and summed in double, k ascending, and rounded to f32
// once per instruction, so that the same sums come out whatever instruction shape computes them.

#include <cstdint>

namespace quire::cuda_emulator {

// `count` is 1, 2 or 4; `row` of lane l belongs to row l % 8 of matrix l / 8.
void LoadMatrices(std::uint32_t* registers, std::uint32_t count, bool transposed, const void* row);
std::uint32_t TransposeMatrix(std::uint32_t fragment);
// d += A B for bf16 or f16 A [16, 16] and B [16, 8].
void MultiplyAdd(float* d, const std::uint32_t* a, const std::uint32_t* b, bool is_bf16);

float Element16(std::uint16_t bits, bool is_bf16);

}  // namespace quire::cuda_emulator
