// mbarriers, bulk copies and warpgroup products of compute capability 9.0.

#include <cuda.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/dtype.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "tests/cuda_emulator/kernel_test.h"

// Kernels, in their usual namespace.
namespace quire::kernels::cuda {
namespace {

using cuda_emulator::DeviceArray;
using cuda_emulator::EncodeTiled;
using cuda_emulator::KernelTest;

class Sm90Test : public KernelTest {
 protected:
  // The map of a tensor of 16-bit elements with adjacent rows.
  static CUtensorMap Encode(void* p, std::vector<cuuint64_t> dims, std::vector<cuuint32_t> box,
                            CUtensorMapSwizzle swizzle) {
    std::vector<cuuint64_t> strides;
    cuuint64_t stride = 2;
    for (std::size_t i = 0; i + 1 < dims.size(); ++i) strides.push_back(stride *= dims[i]);
    const cuuint32_t steps[] = {1, 1, 1, 1, 1};
    CUtensorMap map;
    EXPECT_EQ(
        EncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dims.size()), p,
                    dims.data(), strides.data(), box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_SUCCESS);
    return map;
  }
  static DeviceArray<std::uint16_t> Numbered(std::size_t n) {
    DeviceArray<std::uint16_t> array(n);
    for (std::size_t i = 0; i < n; ++i) array[i] = static_cast<std::uint16_t>(i + 1);
    return array;
  }
};
using Sm90DeathTest = Sm90Test;

// A ring of two stages: warp 0 fills, warps 1 and 2 read.
__global__ void Ring(std::uint32_t* out, std::uint32_t steps) {
  auto* const values = reinterpret_cast<std::uint32_t*>(SharedMemory());
  auto* const full = reinterpret_cast<Barrier*>(values + 64);
  Barrier* const empty = full + 2;
  if (ThreadIndex() == 0) {
    for (int s = 0; s < 2; ++s) {
      BarrierInit(full + s, 32);
      BarrierInit(empty + s, 64);
    }
    BarrierInitFence();
  }
  SyncBlock();
  for (std::uint32_t step = 0; step < steps; ++step) {
    const std::uint32_t s = step % 2;
    const std::uint32_t phase = step / 2 % 2;
    if (Warp() == 0) {
      BarrierWait(empty + s, phase ^ 1);
      values[s * 32 + Lane()] = step * 100 + Lane();
      BarrierArrive(full + s);
    } else {
      BarrierWait(full + s, phase);
      out[step * 64 + ThreadIndex() - 32] = values[s * 32 + 31 - Lane()];
      BarrierArrive(empty + s);
    }
  }
}

TEST_F(Sm90Test, BarriersImplementARing) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> out(7 * 64);
    Run(Ring, {.threads = 96, .shared_bytes = kSharedAlignment + 512}, out.data(), 7u);
    for (std::uint32_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], i / 64 * 100 + 31 - i % 32) << seed;
    }
  }
}

__global__ void Misuse(std::uint32_t how) {
  auto* const barrier = reinterpret_cast<Barrier*>(SharedMemory16());
  if (how == 0) BarrierArrive(barrier);
  BarrierInit(barrier, 1);
  if (how == 1) BarrierWait(barrier, 0);
  BarrierExpect(barrier, 16);
  if (how == 2) BarrierArrive(barrier);
}

TEST_F(Sm90DeathTest, DetectsMisusedBarriers) {
  CheckNoAccess();
  const LaunchShape shape{.threads = 1, .shared_bytes = 64};
  EXPECT_DEATH(Run(Misuse, shape, 0u), "not initialized");
  EXPECT_DEATH(Run(Misuse, shape, 1u), "deadlock\n.*wait for mbarrier at shared address");
  EXPECT_DEATH(Run(Misuse, shape, 2u), "arrival beyond the 1 of this phase");
}

__global__ void Nothing() {}
__global__ void MisuseCluster(std::uint32_t how) {
  auto* const barrier = reinterpret_cast<Barrier*>(SharedMemory16());
  if (ThreadIndex() == 0) BarrierInit(barrier, 1);
  if (how == 1 && BlockX() == 1) return;
  ClusterSync();
  if (how == 0) BarrierArriveIn(2, barrier);
}

TEST_F(Sm90DeathTest, DetectsMisusedClusters) {
  const auto launch = [this](const LaunchShape& shape) {
    return Launch(context_, "test_kernel", Nothing, shape).ok();
  };
  EXPECT_TRUE(launch({.blocks_x = 4, .cluster_x = 2, .threads = 32}));
  EXPECT_FALSE(launch({.blocks_x = 3, .cluster_x = 2, .threads = 32}));
  EXPECT_FALSE(launch({.blocks_x = 8, .cluster_x = 8, .threads = 32}));
  CheckNoAccess();
  const LaunchShape shape{.blocks_x = 2, .cluster_x = 2, .threads = 1, .shared_bytes = 64};
  EXPECT_DEATH(Run(MisuseCluster, shape, 0u), "rank 2 of a cluster of 2 blocks");
  EXPECT_DEATH(Run(MisuseCluster, shape, 1u), "deadlock\n.*wait for the cluster");
}

enum class When { kWaited, kNotWaited };

template <When kWhen>
__global__ void LoadTile(const __grid_constant__ CUtensorMap map, std::int32_t x, std::int32_t y,
                         std::int32_t z, std::uint32_t bytes, std::uint16_t* out) {
  std::byte* const tile = SharedMemory();
  auto* const barrier = reinterpret_cast<Barrier*>(tile + bytes);
  if (ThreadIndex() == 0) {
    BarrierInit(barrier, 1);
    BarrierInitFence();
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    BarrierExpect(barrier, bytes);
    if (z < 0) {
      TmaLoad2D(tile, &map, barrier, x, y, L2Hint::kNormal);
    } else {
      TmaLoad3D(tile, &map, barrier, x, y, z, L2Hint::kEvictFirst);
    }
  }
  if constexpr (kWhen == When::kWaited) BarrierWait(barrier, 0);
  for (std::uint32_t i = ThreadIndex(); i < bytes / 2; i += BlockThreads()) {
    out[i] = reinterpret_cast<const std::uint16_t*>(tile)[i];
  }
  BarrierWait(barrier, 0);
}

TEST_F(Sm90Test, BoxesWithZerosOutside) {
  const DeviceArray<std::uint16_t> tensor = Numbered(40 * 6);
  const CUtensorMap map = Encode(tensor.data(), {40, 6}, {16, 4}, CU_TENSOR_MAP_SWIZZLE_NONE);
  for (const auto& [x, y] : {std::pair(8, 1), std::pair(32, 4), std::pair(-8, -2)}) {
    DeviceArray<std::uint16_t> out(64);
    Run(LoadTile<When::kWaited>, {.threads = 32, .shared_bytes = kSharedAlignment + 256}, map, x, y,
        -1, 128u, out.data());
    for (int i = 0; i < 64; ++i) {
      const int column = x + i % 16;
      const int row = y + i / 16;
      const bool inside = column >= 0 && column < 40 && row >= 0 && row < 6;
      EXPECT_EQ(out[static_cast<std::size_t>(i)], inside ? row * 40 + column + 1 : 0)
          << x << ", " << y << ": " << i;
    }
  }
}

// Rows of the pattern are as long as its name states. The 16-byte chunk number is XORed with the
// number of the 128-byte line inside 1024 (512, 256) bytes.
TEST_F(Sm90Test, SwizzledBoxes) {
  const struct {
    CUtensorMapSwizzle swizzle;
    std::uint32_t row_bytes;
  } cases[] = {{CU_TENSOR_MAP_SWIZZLE_128B, 128},
               {CU_TENSOR_MAP_SWIZZLE_64B, 64},
               {CU_TENSOR_MAP_SWIZZLE_32B, 32}};
  for (const auto& c : cases) {
    const std::uint32_t columns = c.row_bytes / 2;
    constexpr std::uint32_t kRows = 32;
    // [3, 16, columns], read as a box over two of the outermost dimension.
    const DeviceArray<std::uint16_t> tensor = Numbered(3 * 16 * columns);
    const CUtensorMap map = Encode(tensor.data(), {columns, 16, 3}, {columns, 16, 2}, c.swizzle);
    DeviceArray<std::uint16_t> out(kRows * columns);
    Run(LoadTile<When::kWaited>,
        {.threads = 64, .shared_bytes = kSharedAlignment + kRows * c.row_bytes + 64}, map, 0, 0, 1,
        kRows * c.row_bytes, out.data());
    for (std::uint32_t row = 0; row < kRows; ++row) {
      for (std::uint32_t column = 0; column < columns; ++column) {
        const std::uint32_t byte = row * c.row_bytes + column * 2;
        const std::uint32_t line = byte / 128 % (c.row_bytes / 16);
        const std::uint32_t chunk = byte % c.row_bytes / 16 ^ line;
        const std::uint32_t at = row * c.row_bytes + chunk * 16 + byte % 16;
        ASSERT_EQ(out[at / 2], (16 + row) * columns + column + 1) << row << " " << column;
      }
    }
  }
}

TEST_F(Sm90Test, MissingWaitReadsNaN) {
  CheckNoAccess();
  const DeviceArray<std::uint16_t> tensor = Numbered(64);
  const CUtensorMap map = Encode(tensor.data(), {16, 4}, {16, 4}, CU_TENSOR_MAP_SWIZZLE_NONE);
  bool seen = false;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint16_t> out(64);
    Run(LoadTile<When::kNotWaited>, {.threads = 32, .shared_bytes = kSharedAlignment + 256}, map, 0,
        0, -1, 128u, out.data());
    seen = seen || out[0] == 0xffff;
  }
  EXPECT_TRUE(seen);
}

TEST_F(Sm90DeathTest, DetectsInvalidBoxes) {
  CheckNoAccess();
  const DeviceArray<std::uint16_t> tensor = Numbered(256);
  const CUtensorMap map = Encode(tensor.data(), {64, 4}, {64, 4}, CU_TENSOR_MAP_SWIZZLE_128B);
  const LaunchShape shape{.threads = 32, .shared_bytes = kSharedAlignment + 1024};
  EXPECT_DEATH(Run(LoadTile<When::kWaited>, shape, map, 0, 0, 0, 512u, tensor.data()),
               "3 coordinates through a map of 2");
  EXPECT_DEATH(Run(LoadTile<When::kWaited>, shape, map, 0, 0, -1, 256u, tensor.data()),
               "more landed than were announced|not initialized");
  EXPECT_DEATH(Run(LoadTile<When::kWaited>, shape, map, 0, 0, -1, 640u, tensor.data()), "deadlock");
}

TEST(EncodeTest, RejectsWhatTheDriverRejects) {
  alignas(64) static std::uint16_t memory[4096];
  struct Arguments {
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    cuuint32_t rank = 2;
    std::uintptr_t offset = 0;
    cuuint64_t dims[2] = {64, 8};
    cuuint64_t strides[1] = {128};
    cuuint32_t box[2] = {64, 8};
    cuuint32_t steps[2] = {1, 1};
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  };
  const auto encode = [](const Arguments& a) {
    CUtensorMap map;
    return EncodeTiled(&map, a.type, a.rank, reinterpret_cast<std::byte*>(memory) + a.offset,
                       a.dims, a.strides, a.box, a.steps, CU_TENSOR_MAP_INTERLEAVE_NONE, a.swizzle,
                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(encode({}), CUDA_SUCCESS);
  EXPECT_EQ(encode({.rank = 0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.rank = 6}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.offset = 8}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.dims = {0, 8}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.dims = {64, (std::uint64_t{1} << 32) + 1}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.strides = {120}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.strides = {std::uint64_t{1} << 40}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.box = {64, 257}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.box = {64, 0}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.box = {12, 8}}), CUDA_ERROR_INVALID_VALUE);  // 24 bytes
  // 256 bytes with a 128-byte swizzle.
  EXPECT_EQ(encode({.box = {128, 8}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.steps = {1, 9}}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(encode({.swizzle = CU_TENSOR_MAP_SWIZZLE_64B}), CUDA_ERROR_INVALID_VALUE);
}

__global__ void LoadRun(const std::uint32_t* from, std::uint32_t* out) {
  std::byte* const shared = SharedMemory();
  auto* const barrier = reinterpret_cast<Barrier*>(shared + 512);
  if (ThreadIndex() == 0) {
    BarrierInit(barrier, 33);
    BarrierInitFence();
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    BarrierExpect(barrier, 256);
    BulkLoad(shared, from, 256, barrier, L2Hint::kEvictFirst);
  }
  // All lanes copy the other half by cp.async, on the same barrier.
  CpAsync4(shared + 256 + 4 * Lane(), from + 64 + Lane());
  BarrierArriveAfterCpAsync(barrier);
  BarrierWait(barrier, 0);
  for (std::uint32_t i = Lane(); i < 96; i += 32) {
    out[i] = reinterpret_cast<const std::uint32_t*>(shared)[i];
  }
}

TEST_F(Sm90Test, BulkRunsAndCopiesOnOneBarrier) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> from(96);
    for (std::uint32_t i = 0; i < 96; ++i) from[i] = i + 7;
    DeviceArray<std::uint32_t> out(96);
    Run(LoadRun, {.threads = 32, .shared_bytes = kSharedAlignment + 1024}, from.data(), out.data());
    for (std::uint32_t i = 0; i < 96; ++i) ASSERT_EQ(out[i], i + 7);
  }
}

enum class Operands { kShared, kRegisters };

// Offset of element (row, column) of a tile of 64 16-bit columns under the 128-byte swizzle.
// Further columns are `slab_bytes` apart.
__device__ __forceinline__ std::uint32_t SwizzledByte(std::uint32_t row, std::uint32_t column,
                                                      std::uint32_t slab_bytes) {
  const std::uint32_t chunk = column % 64 / 8 ^ row % 8;
  return column / 64 * slab_bytes + row * 128 + chunk * 16 + column % 8 * 2;
}

// d [64][kN] = a [64][64] b + d, with b as [kN][64] (K-major) or [64][kN] (MN-major): four products
// of K 16 in two groups.
template <int kN, int kTransB, Operands kOperands>
__global__ void Warpgroup(const BF16* a, const BF16* b, float* d, std::uint32_t* poison) {
  std::byte* const tile_a = SharedMemory();
  std::byte* const tile_b = tile_a + 64 * 128;
  constexpr std::uint32_t kBRows = kTransB != 0 ? 64 : kN;
  constexpr std::uint32_t kBColumns = kTransB != 0 ? kN : 64;
  for (std::uint32_t i = ThreadIndex(); i < 64 * 64; i += 128) {
    *reinterpret_cast<BF16*>(tile_a + SwizzledByte(i / 64, i % 64, 0)) = a[i];
  }
  for (std::uint32_t i = ThreadIndex(); i < 64 * kN; i += 128) {
    *reinterpret_cast<BF16*>(tile_b + SwizzledByte(i / kBColumns, i % kBColumns, kBRows * 128)) =
        b[i];
  }
  FenceAsyncShared();
  SyncBlock();
  const std::uint32_t row = ThreadIndex() / 32 * 16 + Lane() / 4;
  const std::uint32_t column = Lane() % 4 * 2;
  float sums[kN / 2];
  for (std::uint32_t i = 0; i < kN / 2; ++i) {
    sums[i] = d[(row + i / 2 % 2 * 8) * kN + i / 4 * 8 + column + i % 2];
  }
  WgmmaFence();
  for (std::uint32_t k = 0; k < 4; ++k) {
    const std::byte* const from_b = tile_b + (kTransB != 0 ? k * 16 * 128 : k * 32);
    const std::uint64_t desc_b = WgmmaDescriptor(from_b, kBRows * 128, 1024, SharedSwizzle::k128B);
    if constexpr (kOperands == Operands::kShared) {
      WgmmaShared<kN, kTransB>(
          sums, WgmmaDescriptor(tile_a + k * 32, 0, 1024, SharedSwizzle::k128B), desc_b, true);
    } else {
      std::uint32_t fragment[4];
      for (std::uint32_t i = 0; i < 4; ++i) {
        const BF16* const pair = a + (row + i % 2 * 8) * 64 + k * 16 + column + i / 2 * 8;
        fragment[i] = pair[0].bits | static_cast<std::uint32_t>(pair[1].bits) << 16;
      }
      WgmmaRegisters<kN, kTransB>(sums, fragment, desc_b, true);
    }
    if (k % 2 == 1) WgmmaCommit();
  }
  if (sums[0] != sums[0]) poison[ThreadIndex()] += 1;
  WgmmaWait<1>();
  if (sums[kN / 2 - 1] != sums[kN / 2 - 1]) poison[ThreadIndex()] += 1;
  WgmmaWait<0>();
  for (std::uint32_t i = 0; i < kN / 2; ++i) {
    d[(row + i / 2 % 2 * 8) * kN + i / 4 * 8 + column + i % 2] = sums[i];
  }
}

class WarpgroupTest : public Sm90Test {
 protected:
  template <int kN, int kTransB, Operands kOperands>
  void Check() {
    std::mt19937 random(kN + kTransB);
    std::normal_distribution<float> normal;
    std::vector<BF16> a(64 * 64);
    std::vector<BF16> b(64 * kN);
    std::vector<float> d(64 * kN);
    for (BF16& x : a) x = BF16::FromFloat(normal(random));
    for (BF16& x : b) x = BF16::FromFloat(normal(random));
    for (float& x : d) x = normal(random);
    const DeviceArray<BF16> device_a(a);
    const DeviceArray<BF16> device_b(b);
    const DeviceArray<float> device_d(d);
    const DeviceArray<std::uint32_t> poison(128);
    Run(Warpgroup<kN, kTransB, kOperands>,
        {.threads = 128, .shared_bytes = kSharedAlignment + 64 * 128 + 64 * kN * 2},
        device_a.data(), device_b.data(), device_d.data(), poison.data());
    for (std::size_t m = 0; m < 64; ++m) {
      for (std::size_t n = 0; n < kN; ++n) {
        double sum = d[m * kN + n];
        for (std::size_t k = 0; k < 64; ++k) {
          const BF16 factor = kTransB != 0 ? b[k * kN + n] : b[n * 64 + k];
          sum += double{a[m * 64 + k].ToFloat()} * factor.ToFloat();
        }
        ASSERT_NEAR(device_d[m * kN + n], sum, 4e-6 * (1 + std::fabs(sum))) << m << " " << n;
      }
    }
    // Accumulators owned by a pending product cannot be read.
    for (std::uint32_t t = 0; t < 128; ++t) EXPECT_EQ(poison[t], 2u);
  }
};

TEST_F(WarpgroupTest, MatchesDoublePrecision) {
  CheckNoAccess();  // it reads accumulators of pending products
  Check<64, 0, Operands::kShared>();
  Check<64, 1, Operands::kShared>();
  Check<64, 0, Operands::kRegisters>();
  Check<64, 1, Operands::kRegisters>();
  Check<128, 0, Operands::kShared>();
  Check<128, 1, Operands::kShared>();
  Check<256, 0, Operands::kShared>();
  Check<128, 0, Operands::kRegisters>();
  Check<128, 1, Operands::kRegisters>();
}

// d += 32 products of a[0] and b[0], in every element.
__global__ void MultiplyCodes(std::uint32_t a, std::uint32_t b, float* d) {
  auto* const tile = reinterpret_cast<std::uint8_t*>(SharedMemory());
  for (std::uint32_t i = ThreadIndex(); i < 2 * 64 * 128; i += 128) {
    tile[i] = static_cast<std::uint8_t>(i < 64 * 128 ? a : b);
  }
  FenceAsyncShared();
  SyncBlock();
  float sums[32];
  for (float& sum : sums) sum = *d;
  WgmmaFence();
  WgmmaE4M3<64>(sums, WgmmaDescriptor(tile, 0, 1024, SharedSwizzle::k128B),
                WgmmaDescriptor(tile + 64 * 128, 0, 1024, SharedSwizzle::k128B), true);
  WgmmaCommit();
  WgmmaWait<0>();
  SyncBlock();
  if (ThreadIndex() == 77) *d = sums[13];
}

// Bits of addends below 2^-13 of the largest are truncated.
TEST_F(WarpgroupTest, SumsOfE4M3KeepThirteenBitsOfTheLargestAddend) {
  const auto run = [this](float a, float b, float d) {
    const DeviceArray<float> sum(std::vector<float>{d});
    Run(MultiplyCodes, {.threads = 128, .shared_bytes = kSharedAlignment + 2 * 64 * 128},
        std::uint32_t{F8E4M3::FromFloat(a).bits}, std::uint32_t{F8E4M3::FromFloat(b).bits},
        sum.data());
    return sum[0];
  };
  EXPECT_EQ(run(1, 1, 0), 32.0f);
  EXPECT_EQ(run(-1.5f, 0.5f, 3), -21.0f);
  EXPECT_EQ(run(448, 448, 0), 32.0f * 448 * 448);
  EXPECT_EQ(run(1, 1, 8192), 8224.0f);
  EXPECT_EQ(run(1, 1, 16384), 16384.0f);
  EXPECT_EQ(run(1.25f, 1, 8192), 8224.0f);
  EXPECT_EQ(run(-1.25f, 1, -8193.5f), -8224.0f - 1);
  EXPECT_TRUE(std::isnan(run(std::numeric_limits<float>::quiet_NaN(), 0, 0)));
}

__global__ void Unordered(std::uint32_t how) {
  std::byte* const tile = SharedMemory();
  const std::uint64_t a = WgmmaDescriptor(tile, 0, 1024, SharedSwizzle::k128B);
  float d[32] = {};
  if (how != 0) WgmmaFence();
  if (how == 1 && Warp() == 3) {
    WgmmaShared<64>(d, a, a + 2, false);
  } else {
    WgmmaShared<64>(d, a, how == 3 ? a + (128 >> 4) : a, false);
  }
  WgmmaCommit();
  if (how != 2) WgmmaWait<0>();
  if (how == 4) WgmmaShared<64>(d, a, a, true);
}

TEST_F(Sm90DeathTest, ProductsOutOfOrder) {
  CheckNoAccess();
  const LaunchShape shape{.threads = 128, .shared_bytes = kSharedAlignment + 64 * 128 + 1024};
  EXPECT_DEATH(Run(Unordered, shape, 0u), "without WgmmaFence");
  EXPECT_DEATH(Run(Unordered, shape, 1u), "different wgmma products");
  EXPECT_DEATH(Run(Unordered, shape, 2u), "ends with wgmma products under way");
  EXPECT_DEATH(Run(Unordered, shape, 3u), "does not start in the first row of a pattern");
  EXPECT_DEATH(Run(Unordered, shape, 4u), "without WgmmaFence after the last WgmmaWait");
  EXPECT_DEATH(Run(Unordered, {.threads = 64, .shared_bytes = shape.shared_bytes}, 5u),
               "full warpgroup");
}

}  // namespace
}  // namespace quire::kernels::cuda
