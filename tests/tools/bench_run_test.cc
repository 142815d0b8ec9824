#include "tools/quire/bench_run.h"

#include <atomic>
#include <memory>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/waiting.h"

namespace quire::client {
namespace {

// Answers after a delay, and then requests that the load stops.
class StoppingTarget : public Target {
 public:
  explicit StoppingTarget(std::atomic<bool>* stop) : stop_(stop) {}
  RequestSample Send(const LoadRequest&) override {
    testing::Pace(absl::Milliseconds(100));
    stop_->store(true);
    RequestSample sample;
    sample.ok = true;
    return sample;
  }

 private:
  std::atomic<bool>* stop_;
};

std::size_t SentUntilStopped(const LoadOptions& load, std::int64_t count,
                             std::int64_t concurrency = 1) {
  std::atomic<bool> stop{false};
  const RunResult result = RunLoad(
      Workload(load, 100), [&stop] { return std::make_unique<StoppingTarget>(&stop); },
      {.count = count, .concurrency = concurrency}, stop);
  return result.samples.size();
}

TEST(RunLoadTest, StopDropsRequestsWaitingForAConnection) {
  // All requests are due long before the only connection has its first answer.
  EXPECT_EQ(SentUntilStopped({.arrival = Arrival::kConstant, .rate = 1e5}, 20), 1u);
  EXPECT_EQ(SentUntilStopped({}, 20), 1u);
}

TEST(RunLoadTest, WaitsForTimesBeyondTheClock) {
  EXPECT_EQ(SentUntilStopped({.arrival = Arrival::kConstant, .rate = 1e-12}, 2, 2), 1u);
}

}  // namespace
}  // namespace quire::client
