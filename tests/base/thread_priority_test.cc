#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

absl::Duration ProcessorTime() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

int Niceness() {
  return getpriority(PRIO_PROCESS, 0);
}

TEST(ThreadPriorityTest, LowersOneThreadAndThoseThatItStarts) {
  const int before = Niceness();
  int lowered = -1, again = -1, started = -1;
  std::thread([&] {
    ASSERT_TRUE(LowerPriority());
    lowered = Niceness();
    ASSERT_TRUE(LowerPriority());
    again = Niceness();
    std::thread([&] { started = Niceness(); }).join();
  }).join();
  EXPECT_GE(lowered, kBackgroundNice);
  EXPECT_EQ(again, lowered);
  EXPECT_EQ(started, lowered);
  EXPECT_EQ(Niceness(), before);
}

// Two low-priority threads share one processor. One wakes the other and keeps running. Without the
// yield it would run for the rest of its time slice, which is milliseconds.
TEST(ThreadPriorityTest, YieldingThreadDelaysNoOther) {
  constexpr int kTurns = 20;
  absl::Duration used = {};
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    ASSERT_TRUE(LowerPriority());
    std::atomic<int> asked = 0, done = 0;
    std::thread other([&] {
      for (int turn = 1; turn <= kTurns; ++turn) {
        asked.wait(turn - 1);
        done = turn;
      }
    });
    for (int turn = 1; turn <= kTurns; ++turn) {
      asked = turn;
      asked.notify_one();
      const absl::Duration before = ProcessorTime();
      while (done < turn) YieldAtLowPriority();
      used += ProcessorTime() - before;
    }
    other.join();
  }).join();
  EXPECT_LT(used, kTurns * absl::Microseconds(500));
}

}  // namespace
}  // namespace quire
