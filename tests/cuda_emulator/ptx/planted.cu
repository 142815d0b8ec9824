// The units with wrappers that contain one injected fault each. ptx_wrappers_test.cc lists how each
// is detected. There are three sets, because some faults would hide each other.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels::cuda::planted {

__device__ __forceinline__ std::uint32_t At(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

#if QUIRE_PLANTED_SET == 1

// Swaps rows and columns of A: a[1] and a[2].
__device__ __forceinline__ void MmaBF16(float (&d)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %6, %5, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Uses the other type.
__device__ __forceinline__ void MmaF16(float (&d)[4], const std::uint32_t (&a)[4],
                                       const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Swaps source and destination.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%1], [%0], 16, %2;" ::"r"(At(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Reads too many bytes.
__device__ __forceinline__ void CpAsync4(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(At(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Does not transpose.
__device__ __forceinline__ void LdMatrixX4Trans(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(At(row))
               : "memory");
}
// Swaps registers.
__device__ __forceinline__ void LdMatrixX2(std::uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%1, %0}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(At(row))
               : "memory");
}
// Swaps identifier and number of threads.
__device__ __forceinline__ void NamedArrive(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.cta.arrive %1, %0;" ::"r"(id), "r"(threads) : "memory");
}
// Computes another function.
__device__ __forceinline__ float Exp2Approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Uses another eight-bit format.
__device__ __forceinline__ std::uint32_t E4M3ToF16(std::uint32_t two) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<std::uint16_t>(two)));
  return pair;
}
// Lowers the budget with the instruction that raises it.
template <int kRegisters>
__device__ __forceinline__ void LowerRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Arrives at the caller's own barrier.
__device__ __forceinline__ void BarrierArriveIn(std::uint32_t, Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(At(barrier)) : "memory");
}
// Orders the coordinates like the extents of C.
__device__ __forceinline__ void TmaLoad3D(void* shared, const CUtensorMap* map, Barrier* barrier,
                                          std::int32_t x, std::int32_t y, std::int32_t z,
                                          L2Hint hint) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%5, %4, %3}], [%2], %6;" ::"r"(At(shared)),
      "l"(map), "r"(At(barrier)), "r"(x), "r"(y), "r"(z), "l"(static_cast<std::uint64_t>(hint))
      : "memory");
}
// Swaps the transpositions of A and B.
template <int kN, int kTransB = 0>
__device__ __forceinline__ void WgmmaShared(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b,
                                            bool accumulate) {
  if constexpr (kN != 64) {
    cuda::WgmmaShared<kN, kTransB>(d, a, b, accumulate);
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, %35, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(accumulate ? 1 : 0), "n"(kTransB)
        : "memory");
  }
}

#elif QUIRE_PLANTED_SET == 2

// Waits for the parity of the previous phase.
__device__ __forceinline__ void BarrierWait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "QUIRE_RETRY_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra QUIRE_DONE_%=;\n"
      "bra QUIRE_RETRY_%=;\n"
      "QUIRE_DONE_%=:\n"
      "}" ::"r"(At(barrier)),
      "r"(parity ^ 1)
      : "memory");
}
// Arrives once more than the barrier expects.
__device__ __forceinline__ void BarrierArriveAfterCpAsync(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(At(barrier)) : "memory");
}
// Does not wait.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Orders the words of 16 bytes differently.
__device__ __forceinline__ uint4 LoadStreaming(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %2, %1, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
// Negates B.
template <int kN, int kTransB = 0>
__device__ __forceinline__ void WgmmaRegisters(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                               std::uint64_t b, bool accumulate) {
  if constexpr (kN != 64) {
    cuda::WgmmaRegisters<kN, kTransB>(d, a, b, accumulate);
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, -1, %38;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate ? 1 : 0), "n"(kTransB)
        : "memory");
  }
}

#else

// Does not retry.
__device__ __forceinline__ void BarrierWait(Barrier* barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "}" ::"r"(At(barrier)),
      "r"(parity)
      : "memory");
}
// Counts the arrival but announces no bytes.
__device__ __forceinline__ void BarrierExpect(Barrier* barrier, std::uint32_t) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(At(barrier)) : "memory");
}
#endif

}  // namespace quire::kernels::cuda::planted

// The units below this line call these wrappers.
#if QUIRE_PLANTED_SET == 1
#define MmaBF16 planted::MmaBF16
#define MmaF16 planted::MmaF16
#define CpAsync16 planted::CpAsync16
#define CpAsync4 planted::CpAsync4
#define LdMatrixX4Trans planted::LdMatrixX4Trans
#define LdMatrixX2 planted::LdMatrixX2
#define NamedArrive planted::NamedArrive
#define Exp2Approx planted::Exp2Approx
#define E4M3ToF16 planted::E4M3ToF16
#define LowerRegisters planted::LowerRegisters
#define TmaLoad3D planted::TmaLoad3D
#define BarrierArriveIn planted::BarrierArriveIn
#define WgmmaShared planted::WgmmaShared
#elif QUIRE_PLANTED_SET == 2
#define BarrierWait planted::BarrierWait
#define BarrierArriveAfterCpAsync planted::BarrierArriveAfterCpAsync
#define CpAsyncWait planted::CpAsyncWait
#define LoadStreaming planted::LoadStreaming
#define WgmmaRegisters planted::WgmmaRegisters
#else
#define BarrierWait planted::BarrierWait
#define BarrierExpect planted::BarrierExpect
#endif

#include "tests/cuda_emulator/ptx/units.cu"
#include "tests/cuda_emulator/ptx/units_sm90.cu"
