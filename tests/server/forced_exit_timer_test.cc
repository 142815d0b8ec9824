#include "server/forced_exit_timer.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "base/clock.h"

namespace quire::server {
namespace {

TEST(ForcedExitTimerTest, ExitsAProcessThatDoesNotEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ForcedExitTimer last;
        last.Arm(MonotonicNow() + absl::Milliseconds(50), 70);
        absl::Notification().WaitForNotificationWithTimeout(absl::Seconds(30));
      },
      ::testing::ExitedWithCode(70), "graceful shutdown timed out");
}

TEST(ForcedExitTimerTest, DoesNothingIfTheProcessEndsInTime) {
  const absl::Time begin = MonotonicNow();
  {
    ForcedExitTimer never;
    ForcedExitTimer last;
    last.Arm(MonotonicNow() + absl::Seconds(60), 70);
  }
  EXPECT_LT(MonotonicNow() - begin, absl::Seconds(20));
}

}  // namespace
}  // namespace quire::server
