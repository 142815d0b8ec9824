#include "server/http/status_history.h"

#include <gtest/gtest.h>

#include <random>

namespace quire::server {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

engine::EngineStats StatsWith(int running) {
  engine::EngineStats stats;
  stats.running = running;
  return stats;
}

TEST(StatusHistoryTest, IgnoresSamplesThatAreTooClose) {
  StatusHistory history;
  history.Add(kStart, StatsWith(1));
  history.Add(kStart + StatusHistory::kInterval - absl::Nanoseconds(1), StatsWith(2));
  history.Add(kStart + StatusHistory::kInterval, StatsWith(3));
  const std::vector<StatusSample> samples = history.samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].stats.running, 1);
  EXPECT_EQ(samples[1].stats.running, 3);
  EXPECT_EQ(samples[1].time, kStart + StatusHistory::kInterval);
}

TEST(StatusHistoryTest, KeepsTheLatestSamples) {
  StatusHistory history;
  const int count = static_cast<int>(StatusHistory::kMaxSamples) + 7;
  for (int i = 0; i < count; ++i) history.Add(kStart + i * StatusHistory::kInterval, StatsWith(i));
  const std::vector<StatusSample> samples = history.samples();
  ASSERT_EQ(samples.size(), StatusHistory::kMaxSamples);
  EXPECT_EQ(samples.front().stats.running, 7);
  EXPECT_EQ(samples.back().stats.running, count - 1);
}

TEST(StatusHistoryTest, InvariantsHoldAtRandomTimes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> millis(-1000, 9000);
  StatusHistory history;
  absl::Time now = kStart;
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(millis(random));
    history.Add(now, StatsWith(i));
    ASSERT_TRUE(history.CheckIntegrity().ok()) << history.CheckIntegrity();
  }
  EXPECT_EQ(history.samples().size(), StatusHistory::kMaxSamples);
}

}  // namespace
}  // namespace quire::server
