#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
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
#include "kernels/comm/host_communicator.h"
#include "tests/testing/waiting.h"

namespace quire::kernels {
namespace {

using Ranks = std::vector<std::unique_ptr<HostCommunicator>>;

Ranks MustCreate(std::uint32_t size) {
  auto ranks = HostCommunicator::CreateGroup(size);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  return ranks.ok() ? *std::move(ranks) : Ranks();
}

// Runs fn(rank) on one thread per rank and waits for all of them.
void OnEachRank(std::uint32_t size, const std::function<void(std::uint32_t rank)>& fn) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) threads.emplace_back(fn, rank);
  for (std::thread& thread : threads) thread.join();
}

// Returns values of very different magnitudes, so that another order of sums gives other bits.
float ValueOf(std::uint32_t seed, std::uint32_t round, std::uint32_t rank, std::size_t i) {
  std::mt19937 random(seed + 7919 * round + 131 * rank + static_cast<std::uint32_t>(i));
  const float exponent = static_cast<float>(static_cast<int>(random() % 24) - 12);
  const float sign = random() % 2 == 0 ? 1.0f : -1.0f;
  return sign * std::exp2(exponent) * (1.0f + static_cast<float>(random() % 4096) / 4096.0f);
}

float SumInOrder(std::uint32_t seed, std::uint32_t round, const std::vector<std::uint32_t>& order,
                 std::size_t i) {
  float sum = 0;
  for (const std::uint32_t rank : order) sum += ValueOf(seed, round, rank, i);
  return sum;
}

std::vector<std::uint32_t> Upwards(std::uint32_t size) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t rank = 0; rank < size; ++rank) order.push_back(rank);
  return order;
}

class CommunicatorTest : public ::testing::TestWithParam<std::uint32_t> {};

// Rounds of random sizes and operations. Each rank does random work first, so that they arrive in
// any order.
TEST_P(CommunicatorTest, SumsInRankOrderNotArrivalOrder) {
  const std::uint32_t size = GetParam();
  const std::uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  constexpr std::uint32_t kRounds = 300;
  const Ranks ranks = MustCreate(size);
  std::atomic<std::size_t> wrong{0};
  OnEachRank(size, [&](std::uint32_t rank) {
    HostCommunicator& comm = *ranks[rank];
    std::mt19937 shared(seed);  // the sequence shared by all ranks
    std::mt19937 own(seed + rank + 1);
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::size_t count = shared() % 40;
      const bool gathers = shared() % 2 == 0;
      std::vector<float> values;
      for (std::size_t i = 0; i < count; ++i) values.push_back(ValueOf(seed, round, rank, i));
      for (auto turns = own() % 4; turns > 0; --turns) std::this_thread::yield();
      if (gathers) {
        std::vector<float> all(count * size);
        ASSERT_TRUE(
            comm.AllGather(std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(all)))
                .ok());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const auto from = static_cast<std::uint32_t>(i / count);
          if (all[i] != ValueOf(seed, round, from, i % count)) ++wrong;
        }
      } else {
        ASSERT_TRUE(comm.AllReduceSum(values).ok());
        for (std::size_t i = 0; i < count; ++i) {
          const float want = SumInOrder(seed, round, Upwards(size), i);
          if (std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(want)) {
            ++wrong;
          }
        }
      }
      const absl::Status intact = comm.CheckIntegrity();
      ASSERT_TRUE(intact.ok()) << intact;
    }
  });
  EXPECT_EQ(wrong, 0u);
}

TEST_P(CommunicatorTest, FailedRankFailsAllWaitingRanks) {
  const std::uint32_t size = GetParam();
  for (std::uint32_t failing = 0; failing < size; ++failing) {
    const Ranks ranks = MustCreate(size);
    std::vector<absl::Status> results(size);
    OnEachRank(size, [&](std::uint32_t rank) {
      std::vector<float> values(8, 1.0f);
      for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(ranks[rank]->AllReduceSum(values).ok());
      }
      if (rank == failing) ranks[rank]->Abort(absl::DataLossError("its memory is gone"));
      const std::vector<float> before = values;
      results[rank] = ranks[rank]->AllReduceSum(values);
      EXPECT_EQ(values, before);
    });
    for (const absl::Status& result : results) {
      EXPECT_EQ(result, absl::DataLossError("its memory is gone"));
    }
    EXPECT_TRUE(ranks[0]->CheckIntegrity().ok());
  }
}

TEST_P(CommunicatorTest, DestroyedRankFailsAllWaitingRanks) {
  const std::uint32_t size = GetParam();
  if (size == 1) return;
  Ranks ranks = MustCreate(size);
  std::atomic<std::uint32_t> started{0};
  std::vector<absl::Status> results(size);
  OnEachRank(size, [&](std::uint32_t rank) {
    if (rank == size - 1) {
      EXPECT_TRUE(testing::WaitUntil([&] { return started == size - 1; }));
      ranks[rank].reset();
      return;
    }
    std::vector<float> values(8, 1.0f);
    ++started;
    results[rank] = ranks[rank]->AllReduceSum(values);
  });
  for (std::uint32_t rank = 0; rank + 1 < size; ++rank) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(results[rank].message()), ::testing::HasSubstr("was destroyed"));
  }
}

// Abort happens at a random moment of a round. Each rank completes some rounds and then gets the
// error. Ranks differ by at most one round, and completed rounds are correct.
TEST_P(CommunicatorTest, AbortAtAnyMomentEndsEveryRank) {
  const std::uint32_t size = GetParam();
  const std::uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int trial = 0; trial < 50; ++trial) {
    const Ranks ranks = MustCreate(size);
    const auto after = static_cast<std::uint32_t>(random() % 200);
    std::atomic<std::uint32_t> total{0};
    std::vector<std::uint32_t> done(size, 0);
    std::thread aborter([&] {
      while (total < after) std::this_thread::yield();
      ranks[0]->Abort(absl::InternalError("stopped"));
    });
    OnEachRank(size, [&](std::uint32_t rank) {
      while (true) {
        std::vector<float> values(4, static_cast<float>(done[rank]));
        const absl::Status status = ranks[rank]->AllReduceSum(values);
        if (!status.ok()) {
          EXPECT_EQ(status, absl::InternalError("stopped"));
          return;
        }
        EXPECT_EQ(values[3], static_cast<float>(done[rank] * size));
        ++done[rank];
        ++total;
      }
    });
    aborter.join();
    for (const std::uint32_t rounds : done) EXPECT_EQ(rounds, done[0]);
    EXPECT_TRUE(ranks[0]->CheckIntegrity().ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CommunicatorTest, ::testing::Values(1u, 2u, 4u, 8u),
                         ::testing::PrintToStringParamName());

// Proves that adding the ranks in another order changes the bits.
TEST(CommunicatorValuesTest, AnotherOrderGivesOtherBits) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    if (SumInOrder(1, 0, {0, 1, 2, 3}, i) != SumInOrder(1, 0, {3, 2, 1, 0}, i)) ++different;
  }
  EXPECT_GT(different, 10u);
}

TEST(CommunicatorErrorsTest, ReportsRanksThatDiffer) {
  for (const bool other_operation : {false, true}) {
    const Ranks ranks = MustCreate(2);
    std::vector<absl::Status> results(2);
    OnEachRank(2, [&](std::uint32_t rank) {
      std::vector<float> values(4 + rank);
      std::vector<float> all(2 * values.size());
      results[rank] = other_operation && rank == 1
                          ? ranks[1]->AllGather(std::as_bytes(std::span(values)),
                                                std::as_writable_bytes(std::span(all)))
                          : ranks[rank]->AllReduceSum(values);
    });
    for (const absl::Status& result : results) {
      EXPECT_EQ(result, absl::InvalidArgumentError(
                            other_operation
                                ? "rank 1 calls AllGather with 20 bytes, rank 0 calls AllReduceSum "
                                  "with 16"
                                : "rank 1 calls AllReduceSum with 20 bytes, rank 0 calls "
                                  "AllReduceSum with 16"));
    }
    EXPECT_TRUE(ranks[0]->CheckIntegrity().ok());
  }
}

TEST(CommunicatorErrorsTest, RejectsSizesOutOfRange) {
  for (const std::uint32_t size : {0u, 9u}) {
    const auto ranks = HostCommunicator::CreateGroup(size);
    EXPECT_EQ(ranks.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ranks.status().message()), ::testing::HasSubstr("1 to 8"));
  }
}

}  // namespace
}  // namespace quire::kernels
