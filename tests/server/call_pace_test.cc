#include "server/edge/call_pace.h"

#include <gtest/gtest.h>

namespace quire::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) {
  return kStart + absl::Seconds(seconds);
}

TEST(CallPaceTest, AConnectionHasSomethingOfItsOwn) {
  Allowance own = CallPace::OfConnection();
  EXPECT_EQ(own.UseWhatIsThere(10, At(0)), 2);
  EXPECT_EQ(own.UseWhatIsThere(1, At(0)), 1);
  EXPECT_EQ(own.UseWhatIsThere(32, At(0.5)), 0);
  EXPECT_EQ(own.UseWhatIsThere(100, At(10)), 36) << "64 at most";
}

TEST(CallPaceTest, AnAddressWaitsForWhatIsMoreThanItsRate) {
  CallPace pace;
  EXPECT_EQ(pace.Begin("a", 2000, At(0)), absl::ZeroDuration());
  EXPECT_EQ(pace.Begin("a", 1000, At(0)), absl::Seconds(0.5));
  EXPECT_EQ(pace.Begin("a", 1000, At(0)), absl::Seconds(1)) << "behind the other one";
  EXPECT_EQ(pace.Begin("b", 1000, At(0)), absl::ZeroDuration()) << "another address";
  EXPECT_EQ(pace.Begin("", 1e9, At(0)), absl::ZeroDuration());
  EXPECT_EQ(pace.Begin("a", 1000, At(1.5)), absl::ZeroDuration());
}

TEST(CallPaceTest, AddressesAreForgottenWhenTheyHaveAllAgain) {
  CallPace pace;
  pace.Begin("a", 1000, At(0));
  pace.Begin("b", 4000, At(0));
  pace.Tick(At(0.4));
  EXPECT_EQ(pace.size(), 2u);
  pace.Tick(At(0.6));
  EXPECT_EQ(pace.size(), 1u);
  EXPECT_EQ(pace.Begin("b", 1000, At(0.6)), absl::Seconds(0.9)) << "not forgotten";
  pace.Tick(At(3));
  EXPECT_EQ(pace.size(), 0u);
}

}  // namespace
}  // namespace quire::server
