#include "base/thread_priority.h"

#include <sys/resource.h>

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

}  // namespace
}  // namespace quire
