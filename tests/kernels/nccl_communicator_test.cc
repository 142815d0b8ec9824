#include "kernels/comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/device_graph.h"
#include "base/stream.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/emulated_nccl.h"
#include "tests/testing/waiting.h"

namespace quire::kernels {
namespace {

using ::testing::HasSubstr;

// Runs fn(rank) on one thread per rank, with the rank's device, and waits for all of them.
void OnEachRank(const EmulatedRanks& ranks, const std::function<void(std::uint32_t rank)>& fn) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_TRUE(UseDevice(ranks.backend(rank).device()).ok());
      fn(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const Stream& StreamOf(const EmulatedRanks& ranks, std::uint32_t rank) {
  return *ranks.backend(rank).cuda()->stream;
}

// Values in memory of a rank's device.
class DeviceFloats {
 public:
  DeviceFloats(const EmulatedRanks& ranks, std::uint32_t rank, std::size_t count)
      : stream_(StreamOf(ranks, rank)), count_(count) {
    buffer_ = DeviceBuffer::Allocate(MemoryKind::kDevice,
                                     static_cast<std::int64_t>(count * sizeof(float)))
                  .value();
  }
  std::span<float> span() const { return {static_cast<float*>(buffer_.data()), count_}; }
  void Set(const std::vector<float>& values) const {
    ASSERT_TRUE(stream_.Copy(buffer_.data(), values.data(), buffer_.size_bytes()).ok());
  }
  // REQUIRES: the stream has been synchronized.
  std::vector<float> Get() const {
    std::vector<float> values(count_);
    EXPECT_TRUE(stream_.Copy(values.data(), buffer_.data(), buffer_.size_bytes()).ok());
    return values;
  }

 private:
  const Stream& stream_;
  const std::size_t count_;
  DeviceBuffer buffer_;
};

// Returns the status of the operations enqueued so far, as the rank's communicator reports it.
absl::Status WaitForAll(const EmulatedRanks& ranks, std::uint32_t rank) {
  auto event = Event::Create(ranks.backend(rank).device());
  EXPECT_TRUE(event.ok() && event->Record(StreamOf(ranks, rank)).ok());
  return ranks.comm(rank).Wait(*event);
}

// Returns values of very different magnitudes, so that another order of sums gives other bits. Some
// are zeros of either sign on all ranks.
float ValueOf(std::uint32_t seed, std::uint32_t rank, std::size_t i) {
  if (i % 16 == 3) return seed % 2 == 0 ? 0.0f : -0.0f;
  std::mt19937 random(seed + 131 * rank + 7919 * static_cast<std::uint32_t>(i));
  const float exponent = static_cast<float>(static_cast<int>(random() % 24) - 12);
  const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
  return sign * std::exp2(exponent) * (1.0f + static_cast<float>(random() % 4096) / 4096.0f);
}

std::vector<float> ValuesOf(std::uint32_t seed, std::uint32_t rank, std::size_t count) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(ValueOf(seed, rank, i));
  return values;
}

std::vector<float> SumOf(std::uint32_t seed, std::uint32_t size, std::size_t count) {
  std::vector<float> sum(count, 0.0f);
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += ValueOf(seed, rank, i);
  }
  return sum;
}

std::size_t CountDifferentBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) ++different;
  }
  return different;
}

class NcclCommunicatorTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  NcclCommunicatorTest() { cuda_emulator::Reset(); }
};

TEST_P(NcclCommunicatorTest, SumsInRankOrderNotArrivalOrder) {
  const EmulatedRanks ranks(GetParam());
  const std::uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  OnEachRank(ranks, [&](std::uint32_t rank) {
    std::mt19937 shared(seed);  // the sequence shared by all ranks
    std::mt19937 own(seed + rank + 1);
    for (std::uint32_t round = 0; round < 10; ++round) {
      const std::size_t count = 1 + shared() % 700;
      const DeviceFloats values(ranks, rank, count);
      values.Set(ValuesOf(round, rank, count));
      for (auto turns = own() % 4; turns > 0; --turns) std::this_thread::yield();
      ASSERT_TRUE(ranks.comm(rank).AllReduceSum(values.span()).ok());
      ASSERT_TRUE(WaitForAll(ranks, rank).ok());
      EXPECT_EQ(CountDifferentBits(values.Get(), SumOf(round, ranks.size(), count)), 0u) << round;
    }
  });
}

TEST_P(NcclCommunicatorTest, GathersPartsInRankOrder) {
  const EmulatedRanks ranks(GetParam());
  constexpr std::size_t kCount = 100;
  OnEachRank(ranks, [&](std::uint32_t rank) {
    const DeviceFloats part(ranks, rank, kCount);
    const DeviceFloats all(ranks, rank, kCount * ranks.size());
    part.Set(ValuesOf(1, rank, kCount));
    ASSERT_TRUE(ranks.comm(rank)
                    .AllGather(std::as_bytes(part.span()), std::as_writable_bytes(all.span()))
                    .ok());
    ASSERT_TRUE(WaitForAll(ranks, rank).ok());
    std::vector<float> want;
    for (std::uint32_t from = 0; from < ranks.size(); ++from) {
      for (const float value : ValuesOf(1, from, kCount)) want.push_back(value);
    }
    EXPECT_EQ(CountDifferentBits(all.Get(), want), 0u);
  });
}

// One thread enqueues for all ranks in turn. The first operation does not wait for the others.
TEST_P(NcclCommunicatorTest, EnqueuesOperationsWithoutBlocking) {
  const EmulatedRanks ranks(GetParam());
  std::vector<std::unique_ptr<DeviceFloats>> values;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(UseDevice(ranks.backend(rank).device()).ok());
    values.push_back(std::make_unique<DeviceFloats>(ranks, rank, 33));
    values.back()->Set(ValuesOf(5, rank, 33));
    ASSERT_TRUE(ranks.comm(rank).AllReduceSum(values.back()->span()).ok());
  }
  EXPECT_GT(cuda_emulator::QueuedOperations(), 0u);
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_TRUE(StreamOf(ranks, rank).Synchronize().ok());
    EXPECT_EQ(CountDifferentBits(values[rank]->Get(), SumOf(5, ranks.size(), 33)), 0u);
  }
}

// NCCL requires that all ranks launch what they captured, or none.
TEST_P(NcclCommunicatorTest, GraphsContainOperations) {
  const EmulatedRanks ranks(GetParam());
  constexpr std::size_t kCount = 50;
  OnEachRank(ranks, [&](std::uint32_t rank) {
    const DeviceFloats values(ranks, rank, kCount);
    const auto enqueue = [&] { return ranks.comm(rank).AllReduceSum(values.span()); };
    auto graph = DeviceGraph::Capture(StreamOf(ranks, rank), enqueue);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(graph->num_nodes(), 2);
    for (std::uint32_t round = 0; round < 3; ++round) {
      values.Set(ValuesOf(round, rank, kCount));
      ASSERT_TRUE(graph->Launch(StreamOf(ranks, rank)).ok());
      ASSERT_TRUE(WaitForAll(ranks, rank).ok());
      EXPECT_EQ(CountDifferentBits(values.Get(), SumOf(round, ranks.size(), kCount)), 0u);
    }
  });
}

TEST_P(NcclCommunicatorTest, FailedRankFailsAllWaitingRanks) {
  const std::uint32_t failing = GetParam() - 1;
  const EmulatedRanks ranks(GetParam());
  std::vector<absl::Status> results(ranks.size());
  std::atomic<std::uint32_t> done{0};
  OnEachRank(ranks, [&](std::uint32_t rank) {
    const DeviceFloats values(ranks, rank, 8);
    values.Set(ValuesOf(1, rank, 8));
    ASSERT_TRUE(ranks.comm(rank).AllReduceSum(values.span()).ok());
    ASSERT_TRUE(WaitForAll(ranks, rank).ok());
    ++done;
    if (rank == failing) {
      EXPECT_TRUE(testing::WaitUntil([&] { return done == ranks.size(); }));
      ranks.comm(rank).Abort(absl::DataLossError("its memory is gone"));
    } else {
      // The operation is enqueued before or after the other rank reports its failure.
      ranks.comm(rank).AllReduceSum(values.span()).IgnoreError();
    }
    results[rank] = WaitForAll(ranks, rank);
    if (rank != failing) {
      EXPECT_EQ(ranks.comm(rank).AllReduceSum(values.span()), results[rank]);
      EXPECT_EQ(ranks.comm(rank).BeginStep(1), results[rank]);
    }
    // The aborted operations have ended.
    EXPECT_TRUE(StreamOf(ranks, rank).Synchronize().ok());
  });
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == failing) continue;
    EXPECT_EQ(results[rank], absl::DataLossError("its memory is gone"));
  }
}

TEST_P(NcclCommunicatorTest, DestroyedRankFailsAllWaitingRanks) {
  EmulatedRanks ranks(GetParam());
  std::vector<absl::Status> results(ranks.size());
  OnEachRank(ranks, [&](std::uint32_t rank) {
    if (rank == 0) {
      ranks.Leave(0);
      return;
    }
    const DeviceFloats values(ranks, rank, 8);
    ranks.comm(rank).AllReduceSum(values.span()).IgnoreError();
    results[rank] = WaitForAll(ranks, rank);
  });
  for (std::uint32_t rank = 1; rank < ranks.size(); ++rank) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(results[rank].message()), HasSubstr("rank 0 of"));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclCommunicatorTest, ::testing::Values(2u, 4u, 8u),
                         ::testing::PrintToStringParamName());

class NcclErrorsTest : public ::testing::Test {
 protected:
  NcclErrorsTest() { cuda_emulator::Reset(); }

  // Returns each rank's status of a sum, or of the wait for it.
  static std::vector<absl::Status> SumOnce(const EmulatedRanks& ranks) {
    std::vector<absl::Status> results(ranks.size());
    OnEachRank(ranks, [&](std::uint32_t rank) {
      const DeviceFloats values(ranks, rank, 8);
      results[rank] = ranks.comm(rank).AllReduceSum(values.span());
      if (results[rank].ok()) results[rank] = WaitForAll(ranks, rank);
    });
    return results;
  }
};

// A sum that is gathered in two pieces.
TEST_F(NcclErrorsTest, GathersLongSumsInPieces) {
  const EmulatedRanks ranks(2);
  const std::size_t count = NcclCommunicator::kChunk + 3;
  OnEachRank(ranks, [&](std::uint32_t rank) {
    const DeviceFloats values(ranks, rank, count);
    std::vector<float> own(count, 0.5f);
    own[0] = own[NcclCommunicator::kChunk - 1] = own[NcclCommunicator::kChunk] = own.back() =
        static_cast<float>(rank) + 2;
    values.Set(own);
    ASSERT_TRUE(ranks.comm(rank).AllReduceSum(values.span()).ok());
    ASSERT_TRUE(WaitForAll(ranks, rank).ok());
    std::vector<float> want(count, 1.0f);
    want[0] = want[NcclCommunicator::kChunk - 1] = want[NcclCommunicator::kChunk] = want.back() = 5;
    EXPECT_EQ(CountDifferentBits(values.Get(), want), 0u);
  });
}

TEST_F(NcclErrorsTest, NcclErrorEndsAllRanksWithItsText) {
  for (const char* const function : {"ncclAllGather", "ncclCommGetAsyncError"}) {
    const EmulatedRanks ranks(4);
    InjectNcclFault({.function = function,
                     .rank = 1,
                     .result = kNcclRemoteError,
                     .detail = "rank 1 has lost its cable"});
    std::size_t failed = 0;
    for (const absl::Status& result : SumOnce(ranks)) {
      // Ranks whose sum was complete before the error have it.
      if (result.ok()) continue;
      ++failed;
      EXPECT_EQ(result.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(result.message()),
                  ::testing::AllOf(HasSubstr("NCCL: "), HasSubstr(" of rank 1: remote process"),
                                   HasSubstr("rank 1 has lost its cable")));
    }
    EXPECT_EQ(failed, std::string(function) == "ncclAllGather" ? 4u : failed);
    EXPECT_GE(failed, 1u);
  }
}

TEST_F(NcclErrorsTest, RejectsStepsThatDiffer) {
  const EmulatedRanks ranks(2);
  EXPECT_TRUE(ranks.comm(0).BeginStep(7).ok());
  EXPECT_TRUE(ranks.comm(0).BeginStep(4).ok());
  EXPECT_TRUE(ranks.comm(1).BeginStep(7).ok());
  const auto differ =
      absl::InvalidArgumentError("rank 1 begins a step of 5 rows, but rank 0 began it with 4");
  EXPECT_EQ(ranks.comm(1).BeginStep(5), differ);
  EXPECT_EQ(ranks.comm(0).BeginStep(5), differ);
  EXPECT_EQ(SumOnce(ranks), std::vector<absl::Status>(2, differ));
}

TEST_F(NcclErrorsTest, RanksDoNotRunAhead) {
  const EmulatedRanks ranks(3);
  EXPECT_TRUE(ranks.comm(0).BeginStep(1).ok());
  for (std::uint64_t i = 0; i < NcclCommunicator::kStepsAhead; ++i) {
    EXPECT_TRUE(ranks.comm(1).BeginStep(1).ok());
  }
  EXPECT_EQ(ranks.comm(1).BeginStep(1),
            absl::FailedPreconditionError("rank 1 is 5 steps ahead of rank 2, the limit is 4"));
}

TEST_F(NcclErrorsTest, RejectsInvalidGroups) {
  const EmulatedRanks ranks(2);
  const std::uint32_t before = NumNcclComms();
  EXPECT_EQ(before, 2u);
  const Backend* const first = &ranks.backend(0);
  for (const std::size_t size : {0u, 9u}) {
    const auto group =
        NcclCommunicator::CreateGroup(std::vector<const Backend*>(size, first), EmulatedNccl());
    EXPECT_EQ(group.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(group.status().message()), HasSubstr("1 to 8"));
  }
  EXPECT_EQ(
      NcclCommunicator::CreateGroup(std::vector<const Backend*>(2, first), EmulatedNccl()).status(),
      absl::InvalidArgumentError("ranks 0 and 1 are both on GPU 0"));
  const std::vector<const Backend*> backends = {first, &ranks.backend(1)};
  for (const char* const function : {"ncclCommInitAll", "ncclAllGather"}) {
    InjectNcclFault({.function = function, .detail = "no such transport"});
    const auto group = NcclCommunicator::CreateGroup(backends, EmulatedNccl());
    EXPECT_EQ(group.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(group.status().message()),
                ::testing::AllOf(HasSubstr(function), HasSubstr("no such transport")));
    EXPECT_EQ(NumNcclComms(), before);
  }
}

TEST_F(NcclErrorsTest, NamesAMissingLibrary) {
  const auto absent = NcclCommunicator::Open("libquire-absent.so.2");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("libquire-absent.so.2"));
  const auto other = NcclCommunicator::Open("libm.so.6");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("ncclCommInitAll, which libm.so.6 lacks"));
}

}  // namespace
}  // namespace quire::kernels
