#include "base/thread_priority.h"

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
