#pragma once

// Host emulation of kernels/cuda/mma.cuh with the same names and contracts.

#include <cuda_runtime.h>

#include <cstdint>

#include "tests/cuda_emulator/matrix.h"

namespace quire::kernels::cuda {

inline void LdMatrixX4(std::uint32_t (&r)[4], const void* row) {
  cuda_emulator::LoadMatrices(r, 4, /*transposed=*/false, row);
}
inline void LdMatrixX2(std::uint32_t (&r)[2], const void* row) {
  cuda_emulator::LoadMatrices(r, 2, /*transposed=*/false, row);
}
inline void LdMatrixX4Trans(std::uint32_t (&r)[4], const void* row) {
  cuda_emulator::LoadMatrices(r, 4, /*transposed=*/true, row);
}
inline void LdMatrixX2Trans(std::uint32_t (&r)[2], const void* row) {
  cuda_emulator::LoadMatrices(r, 2, /*transposed=*/true, row);
}
inline std::uint32_t MovMatrixTrans(std::uint32_t a) {
  return cuda_emulator::TransposeMatrix(a);
}
inline void MmaBF16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  cuda_emulator::MultiplyAdd(d, a, b, /*is_bf16=*/true);
}
inline void MmaF16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  cuda_emulator::MultiplyAdd(d, a, b, /*is_bf16=*/false);
}

}  // namespace quire::kernels::cuda
