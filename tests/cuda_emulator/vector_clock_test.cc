#include "tests/cuda_emulator/vector_clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace quire::cuda_emulator {
namespace {

constexpr std::uint32_t kThreads = 6;

// The definition of vector clocks by sets of events. An event is seen if a chain of releases and
// acquires leads from it.
class VectorClockTest : public testing::Test {
 protected:
  using Events = std::set<std::pair<std::uint32_t, std::uint32_t>>;  // thread, its time

  VectorClockTest() {
    const SeenRef nothing(new Seen(NumMembers(kThreads)));
    for (std::uint32_t i = 0; i < kThreads; ++i) clocks_[i] = {.index = i, .seen = nothing};
  }

  void Access(std::uint32_t thread) {
    const auto event = std::pair(thread, clocks_[thread].now);
    seen_[thread].insert(event);
    all_.insert(event);
  }

  void ExpectSeen(std::uint32_t thread) const {
    for (const auto& [of, time] : all_) {
      const bool is_seen = of == thread || time <= clocks_[thread].seen->clocks[of];
      EXPECT_EQ(is_seen, seen_[thread].contains({of, time}))
          << thread << " of " << of << ", " << time;
    }
  }

  std::uint32_t Draw() { return static_cast<std::uint32_t>(random_() % kThreads); }

  std::mt19937 random_{1};
  ThreadClock clocks_[kThreads];
  Events seen_[kThreads];
  Events all_;
};

TEST_F(VectorClockTest, SeesEventsThroughChainsOfMeetings) {
  for (int step = 0; step < 300; ++step) {
    Access(Draw());
    const std::uint32_t from = Draw();
    const std::uint32_t to = Draw();
    Meeting meeting;
    meeting.Arrive(&clocks_[from]);
    Events released = seen_[from];
    if (random_() % 3 == 0) {  // a barrier of two: both acquire
      meeting.Arrive(&clocks_[to]);
      released.insert(seen_[to].begin(), seen_[to].end());
    }
    EXPECT_FALSE(meeting.is_empty());
    const SeenRef all = meeting.Finish();
    EXPECT_TRUE(meeting.is_empty());
    Acquire(&clocks_[to], all);
    seen_[to].insert(released.begin(), released.end());
    for (std::uint32_t thread = 0; thread < kThreads; ++thread) ExpectSeen(thread);
  }
}

// Release and acquire each need a fence, on the right side of the atomic.
TEST_F(VectorClockTest, BlocksSeeEachOtherThroughFenceAndAtomic) {
  const auto sees_other = [](const ThreadClock& clock) {
    return !clock.seen->other_blocks.empty();
  };
  ThreadClock& a = clocks_[0];
  ThreadClock& b = clocks_[1];
  OtherBlocks published;
  ExchangeThroughAtomic(&a, 1, &published);  // no fence before
  EXPECT_TRUE(published.empty());
  Fence(&a);
  ExchangeThroughAtomic(&a, 1, &published);
  ExchangeThroughAtomic(&b, 2, &published);
  EXPECT_FALSE(sees_other(b));  // no fence after
  Fence(&b);
  ASSERT_TRUE(sees_other(b));
  EXPECT_EQ(b.seen->other_blocks[0].first, 1u);
  EXPECT_EQ(b.seen->other_blocks[0].second->clocks[0], 1u);  // not the accesses after the fence
}

// Thread 0 of block 1 arrives in block 2, and a thread of block 2 in block 1. Both know what the
// first one did, and nothing more of the other block.
TEST_F(VectorClockTest, BlocksOfAClusterSynchronize) {
  ThreadClock& a = clocks_[0];
  ThreadClock& b = clocks_[1];
  ThreadClock& c = clocks_[2];  // of block 1
  for (std::uint32_t round = 1; round <= 3; ++round) {
    Meeting there;
    there.ArriveFrom(1, &a, 2);
    Acquire(&b, there.Finish());
    ASSERT_EQ(b.seen->other_blocks.size(), 1u);
    EXPECT_EQ(b.seen->other_blocks[0].first, 1u);
    EXPECT_EQ(b.seen->other_blocks[0].second->clocks[0], round);
    EXPECT_TRUE(b.seen->other_blocks[0].second->other_blocks.empty());
    Meeting back;
    back.ArriveFrom(2, &b, 1);
    Acquire(&c, back.Finish());
    EXPECT_EQ(c.seen->clocks[0], round);
    ASSERT_EQ(c.seen->other_blocks.size(), 1u);
    EXPECT_EQ(c.seen->other_blocks[0].second->clocks[1], round);
  }
}

TEST_F(VectorClockTest, AsyncProxySeesFencedWrites) {
  ThreadClock& clock = clocks_[0];
  EXPECT_EQ(clock.async_fenced, 0u);
  FenceAsync(&clock);
  EXPECT_EQ(clock.async_fenced, 1u);
  Meeting meeting;
  meeting.Arrive(&clock);
  Acquire(&clocks_[1], meeting.Finish());
  ASSERT_FALSE(clocks_[1].seen->async_clocks.empty());
  EXPECT_EQ(clocks_[1].seen->async_clocks[0], 1u);
  EXPECT_EQ(clocks_[1].seen->clocks[0], 2u);
}

}  // namespace
}  // namespace quire::cuda_emulator
