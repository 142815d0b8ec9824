// Threads, warps and barriers of the emulator, and the errors that it must detect.

#include <chrono>
#include <cstring>
#include <set>

#include "kernels/cuda/mma.cuh"
#include "tests/cuda_emulator/kernel_test.h"

// Kernels, in their usual namespace.
namespace quire::kernels::cuda {
namespace {

using cuda_emulator::CollectiveCount;
using cuda_emulator::DeviceArray;
using cuda_emulator::KernelTest;
using cuda_emulator::LaunchCount;
using cuda_emulator::Reset;

class SimtTest : public KernelTest {};
using SimtDeathTest = SimtTest;

__global__ void Identify(std::uint32_t* out) {
  const std::uint32_t i = (BlockY() * GridX() + BlockX()) * BlockThreads() + ThreadIndex();
  out[i] = Warp() * 1000 + Lane();
}

TEST_F(SimtTest, EveryThreadRunsOnce) {
  DeviceArray<std::uint32_t> out(3 * 2 * 96);
  Run(Identify, {.blocks_x = 3, .blocks_y = 2, .threads = 96}, out.data());
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], i % 96 / 32 * 1000 + i % 32) << i;
  }
  EXPECT_EQ(LaunchCount("test_kernel"), 1u);
}

__global__ void Shuffles(std::uint32_t* out, std::uint64_t* wide) {
  const std::uint32_t lane = Lane();
  out[lane] = ShuffleXor(lane * 10, 5);
  out[32 + lane] = Shuffle(lane + 100, lane / 2);
  out[64 + lane] = ShuffleUp(lane, 3);
  out[96 + lane] = Ballot(lane % 3 == 0);
  out[128 + lane] = AnyLane(lane == 40) ? 1 : 0;
  wide[lane] = Shuffle((std::uint64_t{lane} << 40) + 7, 31 - lane);
}

TEST_F(SimtTest, ShufflesAndVotes) {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> out(160);
    DeviceArray<std::uint64_t> wide(32);
    Run(Shuffles, {.threads = 32}, out.data(), wide.data());
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(out[lane], (lane ^ 5) * 10);
      EXPECT_EQ(out[32 + lane], lane / 2 + 100);
      EXPECT_EQ(out[64 + lane], lane < 3 ? lane : lane - 3);
      EXPECT_EQ(out[96 + lane], 0x49249249u);
      EXPECT_EQ(out[128 + lane], 0u);
      EXPECT_EQ(wide[lane], (std::uint64_t{31 - lane} << 40) + 7);
    }
  }
}

// Both halves of a warp shuffle separately, one of them more often.
__global__ void HalfWarps(std::uint32_t* out) {
  const std::uint32_t lane = Lane();
  const std::uint32_t mask = lane < 16 ? 0xffffu : 0xffff0000u;
  std::uint32_t sum = lane;
  for (std::uint32_t step = 8; step > 0; step /= 2) sum += ShuffleXor(sum, step, mask);
  if (lane >= 16) sum += ShuffleXor(sum, 1, mask);
  out[lane] = sum;
}

TEST_F(SimtTest, MasksWithinOneWarp) {
  DeviceArray<std::uint32_t> out(32);
  Run(HalfWarps, {.threads = 32}, out.data());
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(out[lane], lane < 16 ? 120u : 2 * 376u);
  }
}

// Each thread writes a value that a thread of another warp reads.
template <bool kWithBarrier>
__global__ void Exchange(std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  const std::uint32_t i = ThreadIndex();
  shared[i] = i * 3;
  if constexpr (kWithBarrier) SyncBlock();
  out[i] = shared[BlockThreads() - 1 - i];
}

TEST_F(SimtTest, MissingBarrierChangesResultsUnderSomeSeed) {
  CheckNoAccess();
  std::uint32_t wrong = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> good(128);
    Run(Exchange<true>, {.threads = 128, .shared_bytes = 512}, good.data());
    for (std::uint32_t i = 0; i < 128; ++i) ASSERT_EQ(good[i], (127 - i) * 3);
    DeviceArray<std::uint32_t> bad(128);
    Run(Exchange<false>, {.threads = 128, .shared_bytes = 512}, bad.data());
    for (std::uint32_t i = 0; i < 128; ++i) wrong += bad[i] != (127 - i) * 3 ? 1 : 0;
  }
  EXPECT_GT(wrong, 0u);
}

__global__ void WithinWarp(std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  shared[Lane()] = Lane();
  out[Lane()] = shared[31 - Lane()];
}

TEST_F(SimtTest, MissingWarpBarrierChangesResults) {
  CheckNoAccess();
  DeviceArray<std::uint32_t> out(32);
  Run(WithinWarp, {.threads = 32, .shared_bytes = 128}, out.data());
  std::uint32_t wrong = 0;
  for (std::uint32_t lane = 0; lane < 32; ++lane) wrong += out[lane] != 31 - lane ? 1 : 0;
  EXPECT_GT(wrong, 0u);
}

// Warp 0 produces and warp 1 consumes, with two named barriers. Warp 2 has ended long before.
__global__ void Pipeline(std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  if (Warp() == 2) return;
  for (std::uint32_t step = 0; step < 5; ++step) {
    if (Warp() == 0) {
      if (step > 0) NamedSync(2, 64);
      shared[Lane()] = step * 100 + Lane();
      NamedArrive(1, 64);
    } else {
      NamedSync(1, 64);
      out[step * 32 + Lane()] = shared[Lane()];
      if (step < 4) NamedArrive(2, 64);
    }
  }
}

TEST_F(SimtTest, NamedBarriers) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> out(160);
    Run(Pipeline, {.threads = 96, .shared_bytes = 128}, out.data());
    for (std::uint32_t i = 0; i < 160; ++i) ASSERT_EQ(out[i], i / 32 * 100 + i % 32) << seed;
  }
}

__global__ void EndsEarly(std::uint32_t* out) {
  if (ThreadIndex() >= 40) return;
  SyncBlock();
  AtomicAdd(out, 1u);
  SyncWarp(0xffu | (Warp() == 0 ? 0xffffff00u : 0u));
  AtomicMax(out + 1, ThreadIndex());
  AtomicOr(out + 2, 1u << (ThreadIndex() % 4));
}

TEST_F(SimtTest, EndedThreadsAreNotWaitedFor) {
  DeviceArray<std::uint32_t> out(3);
  Run(EndsEarly, {.threads = 64}, out.data());
  EXPECT_EQ(out[0], 40u);
  EXPECT_EQ(out[1], 39u);
  EXPECT_EQ(out[2], 15u);
}

__global__ void Turns(std::uint32_t* out) {
  out[AtomicAdd(out + 128, 1u)] = ThreadIndex();
}

TEST_F(SimtTest, SeedDeterminesOnlyTheOrder) {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<std::uint32_t> runs[2];
    for (auto& run : runs) {
      StartAnew();
      UseSeed(seed);
      DeviceArray<std::uint32_t> out(129);
      Run(Turns, {.threads = 128}, out.data());
      run.assign(out.data(), out.data() + 128);
    }
    EXPECT_EQ(runs[0], runs[1]);
    orders.insert(runs[0]);
  }
  EXPECT_GT(orders.size(), 4u);
}

// Records its number, waits for its other warp, and records it again.
__global__ void NoteTwice(std::uint32_t* notes) {
  for (int i = 0; i < 2; ++i) {
    if (ThreadIndex() == 0) notes[1 + AtomicAdd(notes, 1u)] = BlockX();
    SyncBlock();
  }
}

TEST_F(SimtTest, BlocksInterleaveUnderSomeSeed) {
  int interleaved = 0;
  for (std::uint64_t seed = 1; seed <= 32; ++seed) {
    UseSeed(seed);
    DeviceArray<std::uint32_t> notes(9);
    notes[0] = 0;
    Run(NoteTwice, {.blocks_x = 4, .threads = 64}, notes.data());
    std::vector<std::uint32_t> count(4);
    bool is_interleaved = false;
    for (std::uint32_t i = 0; i < 8; ++i) {
      ++count[notes[1 + i]];
      is_interleaved = is_interleaved || (i % 2 == 1 && notes[i] != notes[i + 1]);
    }
    EXPECT_EQ(count, std::vector<std::uint32_t>(4, 2));
    if (is_interleaved) ++interleaved;
  }
  EXPECT_GT(interleaved, 0);
  EXPECT_LT(interleaved, 32);  // but not always
}

__global__ void ReadShared(std::uint32_t* out, std::uint64_t* alignment) {
  out[0] = *reinterpret_cast<const std::uint32_t*>(SharedMemory());
  alignment[0] = reinterpret_cast<std::uintptr_t>(SharedMemory()) % 1024;
  alignment[1] = reinterpret_cast<std::uintptr_t>(SharedMemory16()) % 1024;
}

TEST_F(SimtTest, SharedMemoryStartsAsNaN) {
  CheckNoAccess();
  DeviceArray<std::uint32_t> out(1);
  DeviceArray<std::uint64_t> alignment(2);
  Run(ReadShared, {.threads = 1, .shared_bytes = kSharedAlignment + 64}, out.data(),
      alignment.data());
  EXPECT_EQ(out[0], 0xffffffffu);
  EXPECT_EQ(alignment[0], 0u);
  EXPECT_NE(alignment[1], 0u);
  EXPECT_EQ(alignment[1] % 16, 0u);
}

__global__ void Diverge() {
  if (Lane() == 3) {
    SyncWarp();
  } else {
    AnyLane(true);
  }
}
__global__ void OneBlockStays() {
  if (BlockX() == 1 && Warp() == 0) NamedSync(1, 64);
}
__global__ void OneWarpStays() {
  if (Warp() == 0) NamedSync(1, 64);
  SyncBlock();
}
__global__ void LaneMissing() {
  if (Lane() != 7) NamedSync(3, 32);
}
__global__ void WriteBehind(std::uint32_t bytes) {
  SharedMemory16()[bytes] = std::byte{1};
}
__global__ void LoadOutside(std::uint32_t bytes) {
  std::uint32_t r[4];
  LdMatrixX4(r, SharedMemory16() + bytes);
}
__global__ void WriteGlobal(std::uint32_t* out, std::uint32_t index) {
  out[index] = 1;
}

TEST_F(SimtDeathTest, DivergentCollective) {
  EXPECT_DEATH(Run(Diverge, {.threads = 32}),
               "kernel test_kernel.*different collectives.*SyncWarp|Ballot");
}

TEST_F(SimtDeathTest, DeadlockNamesTheWaitingThreads) {
  EXPECT_DEATH(Run(OneWarpStays, {.threads = 64}),
               "kernel test_kernel, block \\(0, 0\\).*deadlock\n"
               "  warp 0 lanes ffffffff wait for named barrier 1\n"
               "  warp 1 lanes ffffffff wait for SyncBlock");
  EXPECT_DEATH(Run(LaneMissing, {.threads = 32}), "deadlock\n.*lanes 00000080 have ended");
  // Any block may end last.
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    UseSeed(seed);
    EXPECT_DEATH(Run(OneBlockStays, {.blocks_x = 4, .threads = 64}),
                 "kernel test_kernel, block \\(1, 0\\).*deadlock\n"
                 "  warp 0 lanes ffffffff wait for named barrier 1");
  }
}

TEST_F(SimtDeathTest, SharedMemoryOutOfBounds) {
  EXPECT_DEATH(Run(WriteBehind, {.threads = 1, .shared_bytes = 256}, 256u),
               "behind the 256 bytes of the block was written, at byte 256");
  EXPECT_DEATH(Run(LoadOutside, {.threads = 32, .shared_bytes = 256}, 256u),
               "ldmatrix: 16 bytes at byte 256 are outside the 256 bytes");
  EXPECT_DEATH(Run(LoadOutside, {.threads = 32, .shared_bytes = 256}, 8u),
               "ldmatrix: shared address .* not a multiple of 16");
}

TEST_F(SimtDeathTest, GlobalMemoryOutOfBounds) {
  DeviceArray<std::uint32_t> out(64);  // 256 bytes; the next byte belongs to no block
  EXPECT_DEATH(Run(WriteGlobal, {.threads = 1}, out.data(), 64u),
               "access to 0x.*0 bytes behind a block of 256 bytes of device memory");
  DeviceArray<std::uint32_t> odd(60);
  EXPECT_DEATH(
      {
        Run(WriteGlobal, {.threads = 1}, odd.data(), 60u);
        odd = DeviceArray<std::uint32_t>(1);
      },
      "a byte was written at .*0 bytes behind a block of 240 bytes");
}

__global__ void Overlaps(std::uint32_t waits) {
  if (BlockX() >= waits) return;
  DependencyLaunch();
  DependencyWait();
}

TEST_F(SimtDeathTest, RequiresAWaitForThePrecedingKernel) {
  Run(Overlaps, {.blocks_x = 2, .threads = 32, .programmatic = true}, 1u);
  Run(Overlaps, {.blocks_x = 2, .threads = 32}, 0u);
  EXPECT_DEATH(Run(Overlaps, {.blocks_x = 2, .threads = 32, .programmatic = true}, 0u),
               "no thread has called DependencyWait");
}

TEST_F(SimtTest, RejectsInvalidLaunches) {
  const auto launch = [&](const LaunchShape& shape) {
    return Launch(context_, "test_kernel", OneWarpStays, shape).code();
  };
  EXPECT_EQ(launch({.threads = 1025}), absl::StatusCode::kInternal);
  EXPECT_EQ(launch({.threads = 0}), absl::StatusCode::kInternal);
  EXPECT_EQ(launch({.threads = 32, .shared_bytes = 227 * 1024 + 1}), absl::StatusCode::kInternal);
  EXPECT_EQ(launch({.blocks_y = 65536, .threads = 32}), absl::StatusCode::kInternal);
  EXPECT_EQ(launch({.blocks_x = 0, .threads = 32}), absl::StatusCode::kOk);
  EXPECT_EQ(LaunchCount(), 0u);
}

__global__ void TensorCoreLoop(float* out) {
  std::byte* const shared = SharedMemory16();
  reinterpret_cast<std::uint32_t*>(shared)[ThreadIndex()] = 0;
  SyncBlock();
  float d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  for (std::uint32_t i = 0; i < 1000; ++i) {
    std::uint32_t a[4];
    LdMatrixX4(a, shared + Lane() % 16 * 32 + Lane() / 16 * 16);
    const std::uint32_t b[2] = {a[0], a[1]};
    MmaBF16(d, a, b);
  }
  out[ThreadIndex()] = d[0] + d[3];
}

// The time budget of the kernel tests, with a margin for a busy machine.
TEST_F(SimtTest, ThousandsOfCollectivesAreCheap) {
  DeviceArray<float> out(128);
  const std::uint64_t before = CollectiveCount();
  const auto start = std::chrono::steady_clock::now();
  Run(TensorCoreLoop, {.threads = 128, .shared_bytes = 512}, out.data());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("milliseconds", static_cast<int>(seconds.count() * 1000));
  EXPECT_LT(seconds.count(), 2.0);
  EXPECT_EQ(out[5], 5.0f);
  EXPECT_GE(CollectiveCount() - before, 8000u);
}

}  // namespace
}  // namespace quire::kernels::cuda
