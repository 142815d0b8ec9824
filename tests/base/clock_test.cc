#include "base/clock.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_clock.h"

namespace quire {
namespace {

TEST(ClockTest, MonotonicTimeStartsAtTheWallClockAndNeverDecreases) {
  const MachineClock clock;
  absl::Time last = clock.Now();
  EXPECT_LT(absl::AbsDuration(clock.WallNow() - last), absl::Hours(1));
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = MonotonicNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(ClockTest, ConvertsWallTimeByItsDistanceToNow) {
  testing::FakeClock clock;
  const absl::Time accepted = clock.Now();
  clock.Advance(absl::Seconds(10));
  clock.SetWallJump(absl::Hours(-5));
  EXPECT_EQ(clock.ToWall(accepted), clock.WallNow() - absl::Seconds(10));
  EXPECT_EQ(clock.FromWall(clock.WallNow() + absl::Seconds(3)), clock.Now() + absl::Seconds(3));
  EXPECT_EQ(clock.FromWall(clock.ToWall(accepted)), accepted);
  EXPECT_EQ(clock.ToWall(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(clock.FromWall(absl::InfiniteFuture()), absl::InfiniteFuture());
}

}  // namespace
}  // namespace quire
