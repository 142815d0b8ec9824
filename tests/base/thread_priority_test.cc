#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace quire {
namespace {

int Niceness() {
  return getpriority(PRIO_PROCESS, 0);
}

TEST(ThreadPriorityTest, LowersOneThreadAndThoseThatItStarts) {
  const int before = Niceness();
  int lowered = -1, again = -1, started = -1;
  std::thread([&] {
    ASSERT_TRUE(LowerPriority(ThisThread()));
    lowered = Niceness();
    ASSERT_TRUE(LowerPriority(ThisThread()));
    again = Niceness();
    std::thread([&] { started = Niceness(); }).join();
  }).join();
  EXPECT_GE(lowered, kBackgroundNice);
  EXPECT_EQ(again, lowered);
  EXPECT_EQ(started, lowered);
  EXPECT_EQ(Niceness(), before);
}

// Two threads that stand back share one processor. One wakes the other and goes on, and would do so
// for the rest of its turn, milliseconds, if it did not give way.
TEST(ThreadPriorityTest, AThreadThatGivesWayKeepsNoneWaiting) {
  constexpr int kTurns = 20;
  absl::Duration used = {};
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    ASSERT_TRUE(LowerPriority(ThisThread()));
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
      const absl::Duration before = ProcessorTime(ThisThread());
      while (done < turn) GiveWay();
      used += ProcessorTime(ThisThread()) - before;
    }
    other.join();
  }).join();
  EXPECT_LT(used, kTurns * absl::Microseconds(500));
}

TEST(ThreadPriorityTest, CountsTheTimeOfOneThread) {
  constexpr absl::Duration kSome = absl::Milliseconds(5);
  const auto compute = [] {
    const absl::Duration before = ProcessorTime(ThisThread());
    while (ProcessorTime(ThisThread()) - before < kSome) {
    }
  };
  std::atomic<std::int64_t> waiting = 0;
  std::atomic<bool> end = false;
  std::thread thread([&] {
    compute();
    waiting = ThisThread();
    waiting.notify_one();
    end.wait(false);
  });
  waiting.wait(0);
  const absl::Duration used = ProcessorTime(waiting);
  EXPECT_GE(used, kSome);
  compute();
  EXPECT_LT(ProcessorTime(waiting) - used, kSome);
  end = true;
  end.notify_one();
  thread.join();
}

}  // namespace
}  // namespace quire
