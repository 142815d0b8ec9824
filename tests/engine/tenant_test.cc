// Limits of tenants: rejections, waiting, and isolation of other tenants.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "engine/request/admission_limiter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

void ExpectRefusal(const absl::Status& status, absl::string_view tenant, absl::string_view limit,
                   absl::string_view value, absl::string_view key) {
  ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const auto reason = GetErrorReason(status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "TENANT_LIMIT");
  EXPECT_EQ(reason->Find("tenant"), tenant);
  EXPECT_EQ(reason->Find("limit"), limit);
  EXPECT_EQ(reason->Find("value"), value);
  EXPECT_EQ(reason->Find("key"), key);
  EXPECT_TRUE(reason->retry_delay.has_value());
}

TEST(TenantQueueTest, RejectsOneTenantAndAdmitsOthers) {
  AdmissionLimiter limiter(100, 1000);
  TenantOptions tenants;
  tenants.defaults.max_queued_requests = 3;
  tenants.entries["small"] = {.max_queued_requests = 1, .max_queued_tokens = 50};
  limiter.SetLimits(100, 1000, tenants);
  EXPECT_TRUE(limiter.EnterRequest("small", {}).ok());
  ExpectRefusal(limiter.EnterRequest("small", {}), "small", "1", "1", "max_queued_requests");
  EXPECT_TRUE(limiter.AddTokens("small", 30).ok());
  ExpectRefusal(limiter.AddTokens("small", 21), "small", "50", "30", "max_queued_tokens");
  EXPECT_TRUE(limiter.AddTokens("small", 20).ok());
  // The request is larger than everything that may ever wait, so no retry is suggested.
  const absl::Status too_long = limiter.AddTokens("small", 51);
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorReason(too_long)->name(), "EXCEEDS_CAPACITY");
  EXPECT_FALSE(GetErrorReason(too_long)->retry_delay.has_value());
  EXPECT_EQ(too_long.message(),
            "prompt has 51 tokens, the limit of waiting tokens of tenant \"small\" is 50 "
            "(max_queued_tokens)");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.EnterRequest("unlisted", {}).ok());
  ExpectRefusal(limiter.EnterRequest("unlisted", {}), "unlisted", "3", "3", "max_queued_requests");
  EXPECT_TRUE(limiter.EnterRequest("another", {}).ok());
  EXPECT_TRUE(limiter.AddTokens("another", 900).ok());
  EXPECT_EQ(GetErrorReason(limiter.AddTokens("another", 100))->name(), "QUEUE_FULL");
  EXPECT_TRUE(limiter.CheckIntegrity().ok());

  limiter.LeaveRequest("small");
  limiter.RemoveTokens("small", 50);
  EXPECT_TRUE(limiter.EnterRequest("small", {}).ok());
  limiter.SetLimits(100, 1000, {});
  EXPECT_TRUE(limiter.EnterRequest("small", {}).ok());
  EXPECT_TRUE(limiter.CheckIntegrity().ok());
}

class TenantSchedulerTest : public ::testing::TestWithParam<int> {
 protected:
  TenantSchedulerTest()
      : harness_([] {
          HarnessOptions options = MakeHarnessOptions({.usable_pages = 200}, GetParam());
          options.engine.tenants.entries["greedy"] = {.max_running_requests = 2};
          return options;
        }()) {}

  void Submit(const std::string& tenant, int count) {
    for (int i = 0; i < count; ++i) {
      const auto seed = static_cast<std::uint64_t>(i);
      Request request = MakeRequest(absl::StrCat(tenant, i), MakePrompt(seed, 20), 12);
      request.tenant = tenant;
      request.stopping.ignore_eos = true;
      live_.push_back(harness_.Submit(std::move(request)));
    }
  }

  // Returns the number of requests with a row, by tenant.
  std::map<std::string, int> Running() {
    std::map<std::string, std::set<std::string>> ids;
    for (const Sequence* sequence : harness_.core.scheduler().running()) {
      ids[sequence->request->request.tenant].insert(sequence->request->request.id);
    }
    std::map<std::string, int> running;
    for (const auto& [tenant, set] : ids) running[tenant] = static_cast<int>(set.size());
    return running;
  }

  void ExpectAllDone() {
    harness_.RunUntilIdle();
    for (const auto& live : live_) {
      const Harness::Output& output = harness_.output(live->request.id);
      EXPECT_TRUE(output.status.ok()) << output.status;
      EXPECT_EQ(output.tokens.at(0).size(), 12);
    }
    EXPECT_EQ(harness_.limiter.queued_requests(), 0);
  }

  Harness harness_;
  std::vector<std::shared_ptr<AcceptedRequest>> live_;
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, TenantSchedulerTest, ::testing::Values(1, 2));

TEST_P(TenantSchedulerTest, TenantAtItsLimitWaitsWithoutBlockingOthers) {
  Submit("greedy", 6);
  Submit("other", 3);
  harness_.Step();
  EXPECT_EQ(Running()["greedy"], 2);
  EXPECT_EQ(Running()["other"], 3);
  EXPECT_EQ(harness_.core.scheduler().waiting(), 4);
  int most = 0;
  while (harness_.Step()) most = std::max(most, Running()["greedy"]);
  EXPECT_EQ(most, 2);
  ExpectAllDone();
}

TEST_P(TenantSchedulerTest, CancelledRequestMakesRoomForTheNext) {
  Submit("greedy", 3);
  harness_.Step();
  harness_.Cancel(live_[0], CancelSource::kApi);
  live_.erase(live_.begin());
  harness_.Step();
  EXPECT_EQ(Running()["greedy"], 2);
  ExpectAllDone();
}

TEST_P(TenantSchedulerTest, NewLimitsApplyFromTheNextPlanAndEndNoRequest) {
  Submit("greedy", 6);
  harness_.Step();
  EXPECT_EQ(Running()["greedy"], 2);
  harness_.options.tenants.entries["greedy"].max_running_requests = 4;
  harness_.ApplyOptions();
  harness_.Step();
  EXPECT_EQ(Running()["greedy"], 4);
  harness_.options.tenants.entries["greedy"].max_running_requests = 1;
  harness_.ApplyOptions();
  harness_.Step();
  EXPECT_EQ(Running()["greedy"], 4);
  ExpectAllDone();
}

}  // namespace
}  // namespace quire::engine
