// Typical kernel errors, each next to the correct kernel. The access check must detect the error,
// name the kernel and the line, and accept the correct kernel.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sm90/barrier.cuh"
#include "kernels/cuda/sm90/cluster.cuh"
#include "kernels/cuda/sm90/tma.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"
#include "tests/cuda_emulator/kernel_test.h"

namespace quire::kernels::cuda {
namespace {

using cuda_emulator::CheckedLaunches;
using cuda_emulator::DeviceArray;
using cuda_emulator::EmulatorOptions;
using cuda_emulator::GetOptions;
using cuda_emulator::KernelTest;
using cuda_emulator::SetOptions;

// Returns the text of the abort message: `what`, in a kernel at this line of this file.
std::string Says(const std::string& what, int line) {
  return "kernel test_kernel, .*" + what +
         ".*, at tests/cuda_emulator/access_test.cc:" + std::to_string(line) + "\n";
}
std::string WroteAt(int line) {
  return "wrote at tests/cuda_emulator/access_test.cc:" + std::to_string(line) + ": ";
}

class AccessTest : public KernelTest {};
using AccessDeathTest = AccessTest;

std::uint32_t* SharedWords() {
  return reinterpret_cast<std::uint32_t*>(SharedMemory16());
}

constexpr int kStoreWord = __LINE__ + 6;
template <bool kRight>
__global__ void Reverse(std::uint32_t* out) {
  std::uint32_t* const words = SharedWords();
  words[ThreadIndex()] = 0;
  SyncBlock();
  words[ThreadIndex()] = ThreadIndex();
  if (kRight) SyncBlock();
  out[ThreadIndex()] = words[BlockThreads() - 1 - ThreadIndex()];
}
constexpr int kLoadWord = __LINE__ - 2;

TEST_F(AccessDeathTest, MissingBarrier) {
  const LaunchShape shape{.threads = 64, .shared_bytes = 256};
  const DeviceArray<std::uint32_t> out(64);
  Run(Reverse<true>, shape, out.data());
  // The error is detected under every seed, whichever thread runs first.
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    UseSeed(seed);
    EXPECT_DEATH(
        Run(Reverse<false>, shape, out.data()),
        Says("reads byte .*" + WroteAt(kStoreWord) + "no barrier orders the two", kLoadWord) + "|" +
            Says("writes byte .* read at .*: no barrier orders the two", kStoreWord));
  }
}

// A shuffle is not a barrier, although all lanes converge in it.
template <bool kRight>
__global__ void NeighbourOfAWarp(std::uint32_t* out) {
  std::uint32_t* const words = SharedWords();
  words[Lane()] = Lane();
  const std::uint32_t first = Shuffle(Lane(), 0);
  if (kRight) SyncWarp();
  out[Lane()] = words[Lane() ^ 1] + first;
}

TEST_F(AccessDeathTest, ShufflesDoNotSynchronize) {
  const LaunchShape shape{.threads = 32, .shared_bytes = 128};
  const DeviceArray<std::uint32_t> out(32);
  Run(NeighbourOfAWarp<true>, shape, out.data());
  EXPECT_DEATH(Run(NeighbourOfAWarp<false>, shape, out.data()), "no barrier orders the two");
}

template <bool kRight>
__global__ void ReuseTooEarly(std::uint32_t* out) {
  std::uint32_t* const words = SharedWords();
  for (std::uint32_t round = 0; round < 2; ++round) {
    words[ThreadIndex()] = round;
    SyncBlock();
    out[ThreadIndex()] = words[ThreadIndex() ^ 32];
    if (kRight) SyncBlock();
  }
}

TEST_F(AccessDeathTest, BytesOverwrittenWhileRead) {
  const LaunchShape shape{.threads = 64, .shared_bytes = 256};
  const DeviceArray<std::uint32_t> out(64);
  Run(ReuseTooEarly<true>, shape, out.data());
  EXPECT_DEATH(Run(ReuseTooEarly<false>, shape, out.data()), "no barrier orders the two");
}

constexpr int kReadUnwritten = __LINE__ + 5;
template <bool kRight>
__global__ void SumOfAll(std::uint32_t* out) {
  std::uint32_t* const sum = SharedWords();
  if (kRight && ThreadIndex() == 0) *sum = 0;
  SyncBlock(), AtomicAdd(sum, ThreadIndex());
  SyncBlock();
  out[ThreadIndex()] = *sum;
}

TEST_F(AccessDeathTest, UninitializedSharedMemory) {
  const LaunchShape shape{.threads = 64, .shared_bytes = 16};
  const DeviceArray<std::uint32_t> out(64);
  Run(SumOfAll<true>, shape, out.data());
  EXPECT_EQ(out[7], 63u * 64 / 2);
  EXPECT_DEATH(Run(SumOfAll<false>, shape, out.data()),
               Says("byte 0 of shared memory, which no thread has written", kReadUnwritten));
}

// The block that arrives last adds the partial results of all.
enum class Order { kRight, kNoFenceBefore, kNoFenceBehind, kNoAtomic };
constexpr int kStorePart = __LINE__ + 5;
constexpr int kLoadPart = __LINE__ + 21;
template <Order kOrder>
__global__ void AddOfBlocks(float* parts, std::uint32_t* counter, float* out) {
  std::uint32_t* const order = SharedWords();
  parts[BlockX() * BlockThreads() + ThreadIndex()] = static_cast<float>(BlockX() + 1);
  SyncBlock();
  if (ThreadIndex() == 0) {
    if (kOrder != Order::kNoFenceBefore) DeviceFence();
    if (kOrder == Order::kNoAtomic) {
      *order = *counter;
      *counter = *order + 1;
    } else {
      *order = AtomicAdd(counter, 1u);
    }
    if (kOrder != Order::kNoFenceBehind) DeviceFence();
  }
  SyncBlock();
  if (*order + 1 != GridX()) return;
  float sum = 0;
  for (std::uint32_t block = 0; block < GridX(); ++block) {
    // written by another thread of another block
    sum += LoadAtL2(parts + block * BlockThreads() + (ThreadIndex() ^ 1));
  }
  out[ThreadIndex()] = sum;
}

TEST_F(AccessDeathTest, RacesOfBlocksAtTheReduction) {
  const LaunchShape shape{.blocks_x = 4, .threads = 64, .shared_bytes = 16};
  const DeviceArray<float> parts(256);
  const DeviceArray<float> out(64);
  DeviceArray<std::uint32_t> counter(1);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    counter[0] = 0;
    Run(AddOfBlocks<Order::kRight>, shape, parts.data(), counter.data(), out.data());
    EXPECT_EQ(out[5], 10.0f);
  }
  counter[0] = 0;
  const auto death = [&](auto kernel, const std::string& what) {
    EXPECT_DEATH(Run(kernel, shape, parts.data(), counter.data(), out.data()), what);
  };
  death(AddOfBlocks<Order::kNoFenceBefore>,
        Says("of another block " + WroteAt(kStorePart) + "no fence and atomic", kLoadPart));
  death(AddOfBlocks<Order::kNoFenceBehind>,
        Says("of another block " + WroteAt(kStorePart) + "no fence and atomic", kLoadPart));
  death(AddOfBlocks<Order::kNoAtomic>, "of another block wrote.*no fence and atomic");
}

__global__ void Produce(std::uint32_t* to) {
  DependencyLaunch();
  DependencyWait();
  to[ThreadIndex()] = ThreadIndex();
}
constexpr int kReadEarly = __LINE__ + 5;
template <bool kRight>
__global__ void Consume(const std::uint32_t* from, std::uint32_t* to) {
  DependencyLaunch();
  if (kRight) DependencyWait();
  const std::uint32_t value = from[ThreadIndex() ^ 1];
  if (!kRight) DependencyWait();
  to[ThreadIndex()] = value;
}

TEST_F(AccessDeathTest, ReadsBeforeDependencyWait) {
  const DeviceArray<std::uint32_t> a(64);
  const DeviceArray<std::uint32_t> b(64);
  const LaunchShape shape{.threads = 64, .programmatic = true};
  const auto run = [&](auto consume) {
    ASSERT_TRUE(Launch(context_, "produce", Produce, shape, a.data()).ok());
    Run(consume, shape, a.data(), b.data());
  };
  run(Consume<true>);
  EXPECT_DEATH(
      run(Consume<false>),
      Says("kernel produce in front wrote at .*: DependencyWait has not been called", kReadEarly));
}

// An earlier kernel of the chain may also still be running.
TEST_F(AccessDeathTest, ReadsBeforeDependencyWaitOverTwoKernels) {
  const DeviceArray<std::uint32_t> a(64);
  const DeviceArray<std::uint32_t> b(64);
  const LaunchShape shape{.threads = 64, .programmatic = true};
  const auto run = [&] {
    ASSERT_TRUE(Launch(context_, "first", Produce, shape, a.data()).ok());
    ASSERT_TRUE(Launch(context_, "second", Produce, shape, b.data()).ok());
    Run(Consume<false>, shape, a.data(), b.data());
  };
  EXPECT_DEATH(run(), "kernel first in front wrote");
}

template <bool kRight>
__global__ void ReadCopied(const std::uint32_t* from, std::uint32_t* out) {
  std::uint32_t* const words = SharedWords();
  CpAsync4(words + ThreadIndex(), from + ThreadIndex());
  CpAsyncCommit();
  if (kRight) CpAsyncWait<0>();
  SyncBlock();
  out[ThreadIndex()] = words[ThreadIndex() ^ 1];
  CpAsyncWait<0>();
}

TEST_F(AccessDeathTest, CopiesReadWithoutAWait) {
  const DeviceArray<std::uint32_t> from(64);
  const DeviceArray<std::uint32_t> out(64);
  const LaunchShape shape{.threads = 64, .shared_bytes = 256};
  Run(ReadCopied<true>, shape, from.data(), out.data());
  EXPECT_DEATH(Run(ReadCopied<false>, shape, from.data(), out.data()), "a copy is under way");
}

// A ring of one stage. The consumer signals when it has read.
template <bool kRight>
__global__ void Stages(const std::uint32_t* from, std::uint32_t* out) {
  std::byte* const stage = SharedMemory();
  auto* const full = reinterpret_cast<Barrier*>(stage + 128);
  Barrier* const empty = full + 1;
  if (ThreadIndex() == 0) {
    BarrierInit(full, 1);
    BarrierInit(empty, 32);
    if (kRight) BarrierInitFence();
  }
  SyncBlock();
  for (std::uint32_t step = 0; step < 3; ++step) {
    if (ThreadIndex() == 32) {
      BarrierWait(empty, step % 2 ^ 1);
      BarrierExpect(full, 128);
      BulkLoad(stage, from + 32 * step, 128, full, L2Hint::kNormal);
    }
    if (ThreadIndex() < 32) {
      BarrierWait(full, step % 2);
      out[32 * step + ThreadIndex()] = reinterpret_cast<const std::uint32_t*>(stage)[Lane()];
      BarrierArrive(empty);
    }
  }
}

TEST_F(AccessDeathTest, MissingFenceOfABarrier) {
  const DeviceArray<std::uint32_t> from(96);
  const DeviceArray<std::uint32_t> out(96);
  const LaunchShape shape{.threads = 64, .shared_bytes = kSharedAlignment + 256};
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    Run(Stages<true>, shape, from.data(), out.data());
  }
  EXPECT_DEATH(Run(Stages<false>, shape, from.data(), out.data()),
               "reads through the async proxy.*no FenceAsyncShared lies between");
}

enum class Operand { kRight, kNoFence, kOverwritten, kRegister, kAccumulator };
constexpr int kStoreOperand = __LINE__ + 7;
template <Operand kHow>
__global__ void MultiplyTile(float* out) {
  std::byte* const tile = SharedMemory();
  const std::uint64_t b = WgmmaDescriptor(tile, 0, 1024, SharedSwizzle::k128B);
  auto* const values = reinterpret_cast<std::uint32_t*>(tile);
  for (std::uint32_t i = ThreadIndex(); i < 2048; i += 128) {
    values[i] = i;
  }
  if (kHow != Operand::kNoFence) FenceAsyncShared();
  SyncBlock();
  float d[32] = {};
  std::uint32_t a[4] = {};
  WgmmaFence();
  WgmmaRegisters<64>(d, a, b, false);
  WgmmaCommit();
  if (kHow == Operand::kOverwritten) values[ThreadIndex()] = 1;
  if (kHow == Operand::kRegister) a[ThreadIndex() % 4] = 1;
  if (kHow == Operand::kAccumulator) d[ThreadIndex() % 32] = 1;
  WgmmaWait<0>();
  out[ThreadIndex()] = d[ThreadIndex() % 32] + static_cast<float>(a[ThreadIndex() % 4]);
}
constexpr int kOverwriteRegister = __LINE__ - 5;

TEST_F(AccessDeathTest, OperandsOfWgmma) {
  const DeviceArray<float> out(128);
  const LaunchShape shape{.threads = 128, .shared_bytes = kSharedAlignment + 8192};
  const auto death = [&](auto kernel, const std::string& what) {
    EXPECT_DEATH(Run(kernel, shape, out.data()), what);
  };
  Run(MultiplyTile<Operand::kRight>, shape, out.data());
  death(MultiplyTile<Operand::kNoFence>,
        "reads through the async proxy .*" + WroteAt(kStoreOperand) + "no FenceAsyncShared");
  death(MultiplyTile<Operand::kOverwritten>, "no barrier orders the two");
  death(MultiplyTile<Operand::kRegister>,
        Says("an operand of a wgmma product is overwritten", kOverwriteRegister));
  death(MultiplyTile<Operand::kAccumulator>,
        Says("an accumulator of a wgmma product is touched", kOverwriteRegister + 1));
}

enum class Pair { kRight, kNoClusterSync, kPeerStillReads, kEndsFirst };

// Two blocks read the same rounds of two rows of 64 words. Each copies one row to both.
template <Pair kPair>
__global__ void ReadPairs(const __grid_constant__ CUtensorMap map, std::uint32_t* out) {
  auto* const words = reinterpret_cast<std::uint32_t*>(SharedMemory());
  auto* const full = reinterpret_cast<Barrier*>(words + 128);
  Barrier* const empty = full + 1;
  const std::uint32_t rank = BlockX() % 2;
  if (ThreadIndex() == 0) {
    BarrierInit(full, 1);
    BarrierInit(empty, 2);
    BarrierInitFence();
  }
  kPair == Pair::kNoClusterSync ? SyncBlock() : ClusterSync();
  constexpr std::uint32_t kRounds = 5;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    if (ThreadIndex() == 0) {
      BarrierWait(empty, round % 2 ^ 1);
      BarrierExpect(full, 512);
      TmaMulticast2D(words + rank * 64, &map, full, 0, static_cast<std::int32_t>(round * 2 + rank),
                     3);
    }
    BarrierWait(full, round % 2);
    for (std::uint32_t i = ThreadIndex(); i < 128; i += 32) {
      out[(BlockX() * kRounds + round) * 128 + i] = words[i];
    }
    SyncWarp();
    if (ThreadIndex() < 2) {
      BarrierArriveIn(kPair == Pair::kPeerStillReads ? rank : ThreadIndex(), empty);
    }
  }
  if (kPair != Pair::kEndsFirst) BarrierWait(empty, (kRounds - 1) % 2);
}

// Clusters of two blocks, of which two run at a time.
TEST_F(AccessDeathTest, BlocksOfACluster) {
  const DeviceArray<std::uint32_t> rows(10 * 64);
  for (std::uint32_t i = 0; i < rows.size(); ++i) rows[i] = i + 1;
  const cuuint64_t dims[] = {64, 10}, strides[] = {256};
  const cuuint32_t box[] = {64, 1}, steps[] = {1, 1};
  CUtensorMap map;
  ASSERT_EQ(cuda_emulator::EncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, rows.data(), dims,
                                       strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                       CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  const LaunchShape shape{
      .blocks_x = 6, .cluster_x = 2, .threads = 32, .shared_bytes = kSharedAlignment + 1024};
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    const DeviceArray<std::uint32_t> out(6 * 5 * 128);
    Run(ReadPairs<Pair::kRight>, shape, map, out.data());
    for (std::uint32_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i % 640 + 1) << seed;
    EXPECT_DEATH(Run(ReadPairs<Pair::kNoClusterSync>, shape, map, out.data()),
                 "no barrier orders the two|which no thread has written|has ended already");
    EXPECT_DEATH(Run(ReadPairs<Pair::kPeerStillReads>, shape, map, out.data()),
                 "writes .*no barrier orders the two|to which a copy is under way");
    EXPECT_DEATH(Run(ReadPairs<Pair::kEndsFirst>, shape, map, out.data()),
                 "has not waited for what thread . of another block|has ended already");
  }
}

__global__ void LoadVector(const std::byte* from, uint4* out) {
  *out = *reinterpret_cast<const uint4*>(from);
}
constexpr int kLoadVector = __LINE__ - 2;

TEST_F(AccessDeathTest, MisalignedVectors) {
  const DeviceArray<std::byte> from(64);
  const DeviceArray<uint4> out(1);
  Run(LoadVector, {.threads = 1}, from.data() + 16, out.data());
  EXPECT_DEATH(Run(LoadVector, {.threads = 1}, from.data() + 8, out.data()),
               Says("needs a multiple of 16 and is 8 bytes beyond one", kLoadVector));
}

__global__ void LoadWord(const std::uint32_t* from, std::uint32_t* out) {
  *out = *from;
}
constexpr int kLoadHostWord = __LINE__ - 2;

TEST_F(AccessDeathTest, MemoryOfTheHost) {
  const std::vector<std::uint32_t> host(4);
  const DeviceArray<std::uint32_t> out(1);
  EXPECT_DEATH(Run(LoadWord, {.threads = 1}, host.data(), out.data()),
               Says("which is memory of the host", kLoadHostWord));
}

void TouchDeviceMemory(std::uint32_t* p) {
  *static_cast<volatile std::uint32_t*>(p) = 1;
}
constexpr int kTouch = __LINE__ - 2;

TEST_F(AccessDeathTest, HostAccessToDeviceMemory) {
  EmulatorOptions options = GetOptions();
  options.host_may_touch = false;
  SetOptions(options);
  const DeviceArray<std::uint32_t> out(4);
  EXPECT_DEATH(TouchDeviceMemory(out.data() + 1),
               "the host touches .*, 4 bytes into a block of 16 bytes of device memory, at "
               "tests/cuda_emulator/access_test.cc:" +
                   std::to_string(kTouch));
}

// An unchecked launch reports none of the errors above.
TEST_F(AccessTest, UncheckedLaunchesReportNothing) {
  CheckNoAccess();
  const DeviceArray<std::uint32_t> out(64);
  Run(Reverse<false>, {.threads = 64, .shared_bytes = 256}, out.data());
}

// A sample is checked: the first launch of each kernel, and four in a row from time to time.
TEST_F(AccessDeathTest, ChecksASampleOfLaunches) {
  EmulatorOptions options = GetOptions();
  options.check = CheckedLaunches::kSome;
  SetOptions(options);
  const LaunchShape shape{.threads = 64, .shared_bytes = 256};
  const DeviceArray<std::uint32_t> out(64);
  for (int i = 0; i < 10; ++i) Run(Reverse<true>, shape, out.data());
  Run(Reverse<false>, shape, out.data());
  EXPECT_DEATH(for (int i = 0; i < 128; ++i) Run(Reverse<false>, shape, out.data()),
               "no barrier orders the two|which no thread has written");
}

}  // namespace
}  // namespace quire::kernels::cuda
