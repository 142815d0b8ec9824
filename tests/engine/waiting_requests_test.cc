// Compares the admission order with its definition: a linear search for the first tenant that may
// start and its smallest key.

#include "engine/scheduler/waiting_requests.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace quire::engine {
namespace {

class Queue {
 public:
  explicit Queue(std::uint32_t seed) : random_(seed) {
    for (TenantRequests& tenant : tenants_) tenant.last_start = ++last_start_;
  }

  void RunOne() {
    now_ += absl::Milliseconds(Below(40));
    const std::uint32_t choice = Below(100);
    if (choice < 55) {
      Add();
    } else if (choice < 70) {
      if (!waiting_.empty()) Remove(waiting_[Below(waiting_.size())].get());
    } else if (choice < 75) {
      TenantRequests& tenant = tenants_[Below(tenants_.size())];
      tenant.max_running = tenant.may_start() ? 0 : 1000;
    } else if (choice < 80) {
      TenantRequests& tenant = tenants_[Below(tenants_.size())];
      tenant.running = static_cast<std::int32_t>(Below(3));
      tenant.last_start = ++last_start_;
    } else if (choice < 82) {
      interval_ = absl::Milliseconds(100 * Below(4));
      requests_.SetAgingInterval(interval_);
    } else {
      ScheduledRequest* const best = requests_.Head(now_);
      ASSERT_EQ(best, Expected());
      ASSERT_EQ(requests_.AnyMayStart(), best != nullptr);
      if (best != nullptr && Below(2) == 0) Remove(best);
    }
    ASSERT_EQ(requests_.size(), waiting_.size());
  }
  std::size_t size() const { return waiting_.size(); }

 private:
  std::uint32_t Below(std::size_t bound) {
    return static_cast<std::uint32_t>(random_() % static_cast<std::uint32_t>(bound));
  }

  void Add() {
    Request spec;
    spec.priority = static_cast<std::int32_t>(Below(5)) - 2;
    spec.accept_time = now_ - absl::Milliseconds(Below(200));
    if (Below(3) > 0) spec.deadline = now_ + absl::Milliseconds(Below(3));
    auto request = std::make_unique<ScheduledRequest>(
        std::make_shared<AcceptedRequest>(std::move(spec), ++arrivals_, 0, nullptr));
    request->tenant_requests = &tenants_[Below(tenants_.size())];
    requests_.Add(request.get());
    waiting_.push_back(std::move(request));
  }

  void Remove(const ScheduledRequest* request) {
    EXPECT_TRUE(requests_.Remove(request));
    EXPECT_FALSE(requests_.Remove(request));
    std::erase_if(waiting_, [&](const auto& other) { return other.get() == request; });
  }

  ScheduledRequest* Expected() const {
    const auto key = [&](const ScheduledRequest& live) {
      const Request& request = live.request;
      const std::int64_t interval = absl::ToInt64Milliseconds(interval_);
      const std::int64_t waited = absl::ToInt64Milliseconds(now_ - request.accept_time);
      const std::int64_t aged = interval > 0 ? waited / interval : 0;
      return std::tuple(live.tenant_requests->running, live.tenant_requests->last_start,
                        request.priority - aged, request.deadline, live.arrival);
    };
    ScheduledRequest* best = nullptr;
    for (const auto& request : waiting_) {
      if (!request->tenant_requests->may_start()) continue;
      if (best == nullptr || key(*request) < key(*best)) best = request.get();
    }
    return best;
  }

  std::mt19937 random_;
  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  absl::Duration interval_ = absl::Milliseconds(100);
  std::array<TenantRequests, 4> tenants_;
  std::uint64_t arrivals_ = 0;
  std::uint64_t last_start_ = 0;
  std::vector<std::unique_ptr<ScheduledRequest>> waiting_;
  WaitingRequests requests_{interval_};
};

TEST(WaitingRequestsTest, BestEqualsALinearSearch) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Queue queue(seed);
  std::size_t most = 0;
  for (int operation = 0; operation < 5000; ++operation) {
    ASSERT_NO_FATAL_FAILURE(queue.RunOne()) << "operation " << operation;
    most = std::max(most, queue.size());
  }
  EXPECT_GT(most, 100u);
}

}  // namespace
}  // namespace quire::engine
