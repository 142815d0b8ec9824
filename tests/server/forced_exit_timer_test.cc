#include "server/forced_exit_timer.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace quire::server {
namespace {

TEST(ForcedExitTimerTest, EndsAProcessThatDoesNotEndByItself) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ForcedExitTimer last;
        last.Arm(absl::Now() + absl::Milliseconds(50), 70);
        absl::SleepFor(absl::Seconds(30));
      },
      ::testing::ExitedWithCode(70), "orderly end");
}

TEST(ForcedExitTimerTest, IsSilentWhereTheEndComes) {
  const absl::Time begin = absl::Now();
  {
    ForcedExitTimer never;
    ForcedExitTimer last;
    last.Arm(absl::Now() + absl::Seconds(60), 70);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

}  // namespace
}  // namespace quire::server
