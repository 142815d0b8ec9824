#include "server/edge/call_pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace quire::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) {
  return kStart + absl::Seconds(seconds);
}

TEST(CallPaceTest, ConnectionHasAnAllowanceOfItsOwn) {
  Allowance own = CallPace::OfConnection();
  EXPECT_EQ(own.UseWhatIsThere(10, At(0)), 2);
  EXPECT_EQ(own.UseWhatIsThere(1, At(0)), 1);
  EXPECT_EQ(own.UseWhatIsThere(32, At(0.5)), 0);
  EXPECT_EQ(own.UseWhatIsThere(100, At(10)), 36) << "64 at most";
}

TEST(CallPaceTest, AddressWaitsForCallsAboveItsRate) {
  CallPace pace;
  EXPECT_EQ(pace.Begin("a", 256, At(0)), absl::ZeroDuration());
  EXPECT_EQ(pace.Begin("a", 1000, At(0)), absl::Seconds(0.5));
  EXPECT_EQ(pace.Begin("a", 1000, At(0)), absl::Seconds(1)) << "queued after the previous calls";
  EXPECT_EQ(pace.Begin("b", 256, At(0)), absl::ZeroDuration()) << "another address";
  EXPECT_EQ(pace.Begin("", 1e9, At(0)), absl::ZeroDuration());
  EXPECT_EQ(pace.Begin("a", 256, At(1.5)), absl::ZeroDuration());
}

TEST(CallPaceTest, ForgetsAddressesWithAFullAllowance) {
  CallPace pace;
  pace.Begin("a", 100, At(0));
  pace.Begin("b", 1256, At(0));
  pace.Tick(At(0.04));
  EXPECT_EQ(pace.size(), 2u);
  pace.Tick(At(0.06));
  EXPECT_EQ(pace.size(), 1u);
  EXPECT_EQ(pace.Begin("b", 1000, At(0.6)), absl::Seconds(0.4)) << "not forgotten";
  pace.Tick(At(3));
  EXPECT_EQ(pace.size(), 0u);
}

// Calls that wait as instructed never exceed the rate, whatever the order of the requests.
TEST(CallPaceTest, NoAddressExceedsItsRate) {
  std::mt19937 random(1);
  CallPace pace;
  struct Begun {
    double when, calls;
  };
  std::map<std::string, std::vector<Begun>> begun;
  double now = 0;
  for (int i = 0; i < 2000; ++i) {
    now += std::uniform_real_distribution<>(0, 0.5)(random);
    const std::string ip(1, static_cast<char>('a' + random() % 3));
    const double calls = std::floor(std::uniform_real_distribution<>(0, 3000)(random));
    const double when = now + absl::ToDoubleSeconds(pace.Begin(ip, calls, At(now)));
    for (const Begun& earlier : begun[ip]) {
      double sum = -earlier.calls;  // sum of the calls after `earlier`, up to this one
      for (const Begun& other : begun[ip]) sum += other.when >= earlier.when ? other.calls : 0;
      EXPECT_LE(sum + calls,
                CallPace::kCallsAtOnce + CallPace::kCallsPerSecond * (when - earlier.when) + 1e-3);
    }
    auto& all = begun[ip];
    all.push_back({when, calls});
    if (all.size() > 20) all.erase(all.begin());
    if (random() % 4 == 0) pace.Tick(At(now));
    ASSERT_TRUE(pace.CheckIntegrity().ok()) << pace.CheckIntegrity();
  }
}

}  // namespace
}  // namespace quire::server
