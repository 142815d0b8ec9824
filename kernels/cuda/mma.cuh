#pragma once

// Tensor core instructions of compute capability 8.0, one wrapper each. Fragment layouts are those
// of the PTX ISA, section "Matrix fragments for mma.m16n8k16". With g = lane / 4 and c = lane % 4,
// the registers of a lane contain these (row, column) elements:
//
//   A [16, 16] 16-bit   a0 (g, 2c and 2c+1)           a1 (g+8, 2c and 2c+1)
//                       a2 (g, 2c+8 and 2c+9)         a3 (g+8, 2c+8 and 2c+9)
//   B [16, 8]  16-bit   b0 (2c and 2c+1, g)           b1 (2c+8 and 2c+9, g)
//   C [16, 8]  f32      c0, c1 (g, 2c and 2c+1)       c2, c3 (g+8, 2c and 2c+1)

#include <cuda_runtime.h>

#include <cstdint>

namespace quire::kernels::cuda {

// LdMatrixX4 loads four 8x8 matrices of 16-bit elements, LdMatrixX2 two. Lane l passes the 16-byte
// aligned shared address of row l % 8 of matrix l / 8. Register i receives row lane / 4, columns 2
// (lane % 4) and 2 (lane % 4) + 1 of matrix i.
__device__ __forceinline__ void LdMatrixX4(std::uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void LdMatrixX2(std::uint32_t (&r)[2], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(from)
               : "memory");
}
// Like LdMatrixX4 and LdMatrixX2, but each matrix is transposed.
__device__ __forceinline__ void LdMatrixX4Trans(std::uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void LdMatrixX2Trans(std::uint32_t (&r)[2], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(from)
               : "memory");
}
// Transposes an 8x8 matrix that occupies one register per lane.
__device__ __forceinline__ std::uint32_t MovMatrixTrans(std::uint32_t a) {
  std::uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Computes d += A B, with f32 sums of bf16 or f16 products.
__device__ __forceinline__ void MmaBF16(float (&d)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void MmaF16(float (&d)[4], const std::uint32_t (&a)[4],
                                       const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace quire::kernels::cuda
