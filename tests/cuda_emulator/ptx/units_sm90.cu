// Kernels that call each wrapper of kernels/cuda/sm90/*.cuh, and those that are empty below compute
// capability 9.0. The file is compiled twice, like units.cu.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels::cuda {
namespace {

// Initializes a barrier of `arrivals` after the first `words` words of shared memory and returns
// it.
__device__ Barrier* InitBehind(std::uint32_t words, std::uint32_t arrivals) {
  auto* const barrier = reinterpret_cast<Barrier*>(SharedMemory() + 4 * words);
  if (ThreadIndex() == 0) {
    BarrierInit(barrier, arrivals);
    BarrierInitFence();
  }
  SyncBlock();
  return barrier;
}

__device__ void CopyOut(std::uint32_t* out, std::uint32_t words) {
  const auto* const shared = reinterpret_cast<const std::uint32_t*>(SharedMemory());
  for (std::uint32_t i = ThreadIndex(); i < words; i += BlockThreads()) out[i] = shared[i];
}

// Descriptors of A [64 rows][64] and of B in rows and in columns.
struct Operands {
  std::uint64_t a;
  std::uint64_t rows;
  std::uint64_t columns;
};

// Words of A and B. They are in shared memory under the 128-byte swizzle in the order of `in`. B
// has 128 rows of 64 elements, or twice that for 256 columns.
template <int kN>
inline constexpr std::uint32_t kTileWords = (64 + (kN > 128 ? kN : 128)) * 32;

template <int kN>
__device__ Operands LoadOperands(const std::uint32_t* in) {
  auto* const tile = reinterpret_cast<std::uint32_t*>(SharedMemory());
  for (std::uint32_t i = ThreadIndex(); i < kTileWords<kN>; i += 128) tile[i] = in[i];
  FenceAsyncShared();
  SyncBlock();
  return {WgmmaDescriptor(tile, 0, 1024, SharedSwizzle::k128B),
          WgmmaDescriptor(tile + 64 * 32, 0, 1024, SharedSwizzle::k128B),
          WgmmaDescriptor(tile + 64 * 32, 64 * 128, 1024, SharedSwizzle::k128B)};
}

// Two steps of K, with K-major B in the first group and MN-major B in the second, which ends with a
// product that does not accumulate.
template <int kN, bool kShared>
__device__ void Multiply(const std::uint32_t* in, std::uint32_t* out) {
  auto [a, rows, columns] = LoadOperands<kN>(in);
  float sums[kN / 2];
  float others[kN / 2];
  std::uint32_t fragment[4];
  in += kTileWords<kN> + ThreadIndex() * (kN / 2 + 4);
  for (int i = 0; i < kN / 2; ++i) sums[i] = others[i] = BitsFloat(in[i]);
  for (int i = 0; i < 4; ++i) fragment[i] = in[kN / 2 + i];
  WgmmaPin(a);
  WgmmaPin(sums);
  WgmmaPin(others);
  WgmmaPin(fragment);
  WgmmaFence();
  if constexpr (kShared) {
    WgmmaShared<kN>(sums, a, rows, true);
    WgmmaShared<kN>(sums, a + 2, rows + 2, true);
    WgmmaCommit();
    WgmmaShared<kN, 1>(others, a + 4, columns, in[0] == 0x7fc00000u);
    WgmmaShared<kN, 1>(others, a + 6, columns + 128, true);
  } else {
    WgmmaRegisters<kN>(sums, fragment, rows, true);
    WgmmaRegisters<kN>(sums, fragment, rows + 2, true);
    WgmmaCommit();
    WgmmaRegisters<kN, 1>(others, fragment, columns, in[0] == 0x7fc00000u);
    WgmmaRegisters<kN, 1>(others, fragment, columns + 128, true);
  }
  WgmmaCommit();
  WgmmaWait<1>();
  WgmmaPin(sums);
  out += ThreadIndex() * kN;
  for (int i = 0; i < kN / 2; ++i) out[i] = FloatBits(sums[i]);
  WgmmaWait<0>();
  WgmmaPin(others);
  for (int i = 0; i < kN / 2; ++i) out[kN / 2 + i] = FloatBits(others[i]);
}

// The same from shared memory in sequence, since both sets of sums do not fit in registers.
template <int kN>
__device__ void MultiplyInTurn(const std::uint32_t* in, std::uint32_t* out) {
  const auto [a, rows, columns] = LoadOperands<kN>(in);
  float sums[kN / 2];
  in += kTileWords<kN> + ThreadIndex() * (kN / 2 + 4);
  out += ThreadIndex() * kN;
  for (int i = 0; i < kN / 2; ++i) sums[i] = BitsFloat(in[i]);
  WgmmaPin(sums);
  WgmmaFence();
  WgmmaShared<kN>(sums, a, rows, true);
  WgmmaShared<kN>(sums, a + 2, rows + 2, true);
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaPin(sums);
  for (int i = 0; i < kN / 2; ++i) out[i] = FloatBits(sums[i]);
  WgmmaPin(sums);
  WgmmaFence();
  WgmmaShared<kN, 1>(sums, a + 4, columns, in[0] == 0x7fc00000u);
  WgmmaShared<kN, 1>(sums, a + 6, columns + 128, true);
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaPin(sums);
  for (int i = 0; i < kN / 2; ++i) out[kN / 2 + i] = FloatBits(sums[i]);
}

// e4m3 with K-major B: two steps of K that accumulate, and two that do not.
template <int kN>
__device__ void MultiplyE4M3(const std::uint32_t* in, std::uint32_t* out) {
  const auto [a, rows, columns] = LoadOperands<kN>(in);
  float sums[kN / 2];
  float others[kN / 2];
  in += kTileWords<kN> + ThreadIndex() * (kN / 2 + 4);
  for (int i = 0; i < kN / 2; ++i) sums[i] = others[i] = BitsFloat(in[i]);
  WgmmaPin(sums);
  WgmmaPin(others);
  WgmmaFence();
  WgmmaE4M3<kN>(sums, a, rows, true);
  WgmmaE4M3<kN>(sums, a + 2, rows + 2, true);
  WgmmaCommit();
  WgmmaE4M3<kN>(others, a + 4, rows + 4, in[0] == 0x7fc00000u);
  WgmmaE4M3<kN>(others, a + 6, rows + 6, true);
  WgmmaCommit();
  WgmmaWait<1>();
  WgmmaPin(sums);
  out += ThreadIndex() * kN;
  for (int i = 0; i < kN / 2; ++i) out[i] = FloatBits(sums[i]);
  WgmmaWait<0>();
  WgmmaPin(others);
  for (int i = 0; i < kN / 2; ++i) out[kN / 2 + i] = FloatBits(others[i]);
}

}  // namespace

extern "C" {

// Warp 0 fills the two stages of a ring, warp 1 reads them.
__global__ void BarrierRingUnit(const std::uint32_t* in, std::uint32_t* out) {
  Barrier* const full = InitBehind(64, 32);
  auto* const values = reinterpret_cast<std::uint32_t*>(SharedMemory());
  if (ThreadIndex() == 0) {
    BarrierInit(full + 1, 32);
    BarrierInit(full + 2, 32);
    BarrierInit(full + 3, 32);
    BarrierInitFence();
  }
  SyncBlock();
  for (std::uint32_t step = 0; step < 6; ++step) {
    const std::uint32_t stage = step % 2;
    const std::uint32_t phase = step / 2 % 2;
    if (Warp() == 0) {
      BarrierWait(full + 2 + stage, phase ^ 1);
      values[stage * 32 + Lane()] = in[step * 32 + Lane()];
      BarrierArrive(full + stage);
    } else {
      BarrierWait(full + stage, phase);
      out[step * 32 + Lane()] = values[stage * 32 + Lane()];
      BarrierArrive(full + 2 + stage);
    }
  }
}

// Copies 256 bytes by a bulk copy, and as many by cp.async of the 32 lanes, on one barrier.
__global__ void BulkLoadUnit(const std::uint32_t* in, std::uint32_t* out) {
  Barrier* const barrier = InitBehind(128, 33);
  std::byte* const shared = SharedMemory();
  if (ThreadIndex() == 0) {
    BarrierExpect(barrier, 256);
    BulkLoad(shared, in, 256, barrier, L2Hint::kEvictFirst);
  }
  CpAsync4(shared + 256 + 4 * Lane(), in + 64 + Lane());
  CpAsync4(shared + 384 + 4 * Lane(), in + 96 + Lane());
  BarrierArriveAfterCpAsync(barrier);
  BarrierWait(barrier, 0);
  CopyOut(out, 128);
}

// Boxes of 1024 bytes. Their coordinates, which may be outside, are the first words of `in`.
__global__ void TmaLoad2DUnit(const __grid_constant__ CUtensorMap map, const std::uint32_t* in,
                              std::uint32_t* out) {
  Barrier* const barrier = InitBehind(256, 1);
  if (ThreadIndex() == 0) {
    TmaPrefetchMap(&map);
    BarrierExpect(barrier, 1024);
    TmaLoad2D(SharedMemory(), &map, barrier, static_cast<std::int32_t>(in[0]),
              static_cast<std::int32_t>(in[1]), L2Hint::kNormal);
  }
  BarrierWait(barrier, 0);
  CopyOut(out, 256);
}
__global__ void TmaLoad3DUnit(const __grid_constant__ CUtensorMap map, const std::uint32_t* in,
                              std::uint32_t* out) {
  Barrier* const barrier = InitBehind(256, 1);
  if (ThreadIndex() == 0) {
    BarrierExpect(barrier, 1024);
    TmaLoad3D(SharedMemory(), &map, barrier, static_cast<std::int32_t>(in[0]),
              static_cast<std::int32_t>(in[1]), static_cast<std::int32_t>(in[2]),
              L2Hint::kEvictLast);
  }
  BarrierWait(barrier, 0);
  CopyOut(out, 256);
}

// Two blocks have two boxes of 1024 bytes, one row apart. Each block copies one to both. No block
// ends before both have them.
__global__ void ClusterUnit(const __grid_constant__ CUtensorMap map, const std::uint32_t* in,
                            std::uint32_t* out) {
  Barrier* const full = InitBehind(512, 1);
  Barrier* const done = full + 1;
  if (ThreadIndex() == 0) {
    BarrierInit(done, 2);
    BarrierInitFence();
  }
  ClusterSync();
  if (ThreadIndex() == 0) {
    BarrierExpect(full, 2048);
    TmaMulticast2D(SharedMemory() + BlockX() * 1024, &map, full, static_cast<std::int32_t>(in[0]),
                   static_cast<std::int32_t>(in[1] + BlockX()), 3);
  }
  BarrierWait(full, 0);
  CopyOut(out + BlockX() * 512, 512);
  if (ThreadIndex() < 2) BarrierArriveIn(ThreadIndex(), done);
  BarrierWait(done, 0);
}

// Empty below 9.0.
__global__ void DependencyUnit(const std::uint32_t* in, std::uint32_t* out) {
  DependencyLaunch();
  DependencyWait();
  out[ThreadIndex()] = in[ThreadIndex()];
}

// Three warpgroups. The first gives registers to the others.
__global__ void __launch_bounds__(384, 1)
    RegistersUnit(const std::uint32_t* in, std::uint32_t* out) {
  if (Warp() < 4) {
    LowerRegisters<40>();
  } else {
    RaiseRegisters<232>();
  }
  out[ThreadIndex()] = in[ThreadIndex()];
}

__global__ void WgmmaSharedN32Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply<32, true>(in, out);
}
__global__ void WgmmaSharedN64Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply<64, true>(in, out);
}
__global__ void WgmmaSharedN128Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply<128, true>(in, out);
}
__global__ void WgmmaSharedN256Unit(const std::uint32_t* in, std::uint32_t* out) {
  MultiplyInTurn<256>(in, out);
}
__global__ void WgmmaE4M3N64Unit(const std::uint32_t* in, std::uint32_t* out) {
  MultiplyE4M3<64>(in, out);
}
__global__ void WgmmaE4M3N128Unit(const std::uint32_t* in, std::uint32_t* out) {
  MultiplyE4M3<128>(in, out);
}
__global__ void WgmmaRegistersN64Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply<64, false>(in, out);
}
__global__ void WgmmaRegistersN128Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply<128, false>(in, out);
}

}  // extern "C"

}  // namespace quire::kernels::cuda
