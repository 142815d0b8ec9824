#include "server/last_resort.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace quire::server {
namespace {

TEST(LastResortTest, EndsAProcessThatDoesNotEndByItself) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        LastResort last;
        last.Arm(absl::Now() + absl::Milliseconds(50), 70);
        absl::SleepFor(absl::Seconds(30));
      },
      ::testing::ExitedWithCode(70), "orderly end");
}

TEST(LastResortTest, IsSilentWhereTheEndComes) {
  const absl::Time begin = absl::Now();
  {
    LastResort never;
    LastResort last;
    last.Arm(absl::Now() + absl::Seconds(60), 70);
  }
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

}  // namespace
}  // namespace quire::server
