// The queue is fair between tenants, whatever priorities their callers request. A priority orders
// the requests of its own tenant.

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

constexpr std::uint32_t kRows = 4;
constexpr std::int32_t kStepTokens = 512;

class FairnessTest : public ::testing::TestWithParam<int> {
 protected:
  FairnessTest()
      : harness_([] {
          HarnessOptions options = MakeHarnessOptions({.usable_pages = 1024,
                                                       .page_size = 64,
                                                       .max_rows = kRows,
                                                       .max_context_tokens = 16384},
                                                      GetParam());
          options.engine.max_step_tokens = kStepTokens;
          options.engine.prefill_chunk_tokens = kStepTokens;
          options.engine.max_step_prompt_tokens = kStepTokens;
          return options;
        }()) {}

  void Submit(const std::string& tenant, int number, std::int32_t priority,
              std::size_t prompt_tokens = 20, std::int32_t max_tokens = 8) {
    Request request =
        MakeRequest(absl::StrCat(tenant, number),
                    MakePrompt(static_cast<std::uint64_t>(number), prompt_tokens), max_tokens);
    request.tenant = tenant;
    request.priority = priority;
    request.stopping.ignore_eos = true;
    harness_.Submit(std::move(request));
  }
  // Runs a step, and adds the ids of the requests that it started to `starts_`.
  void Step() {
    ASSERT_TRUE(harness_.Step());
    for (const ScheduledRequest* live : harness_.core.last_plan().started) {
      starts_.push_back(live->request.id);
    }
  }

  Harness harness_;
  std::vector<std::string> starts_;  // ids, in order
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, FairnessTest, ::testing::Values(1, 2));

// Twelve callers of one tenant always have a request of the highest priority waiting.
TEST_P(FairnessTest, UrgentTenantDoesNotStarveAnother) {
  int next = 0;
  const auto fill = [&] {
    while (harness_.core.scheduler().waiting() < 12) Submit("urgent", next++, -100);
  };
  fill();
  Step();
  Submit("other", 0, 100);
  // All rows are taken. The first free row goes to the other tenant.
  for (int steps = 0; !harness_.output("other0").started; ++steps) {
    ASSERT_LT(steps, 12) << starts_.size() << " requests of the urgent tenant were started";
    fill();
    Step();
  }
}

TEST_P(FairnessTest, WaitingTenantsShareTheRows) {
  for (int i = 0; i < 40; ++i) Submit("urgent", i, -100);
  Step();
  for (int i = 0; i < 20; ++i) Submit("other", i, 0);
  std::map<std::string, int> running;
  const auto count = [&] {
    running.clear();
    for (const Sequence* sequence : harness_.core.scheduler().running()) {
      ++running[sequence->request->request.tenant];
    }
  };
  for (int steps = 0; running["other"] == 0; ++steps) {
    ASSERT_LT(steps, 20);
    Step();
    count();
  }
  for (int steps = 0; steps < 60; ++steps) {
    Step();
    count();
    EXPECT_LE(running["urgent"], 3);
    EXPECT_LE(running["other"], 3);
  }
  int of_other = 0;
  for (int i = 0; i < 20; ++i) of_other += harness_.output(absl::StrCat("other", i)).started;
  int of_urgent = 0;
  for (int i = 0; i < 40; ++i) of_urgent += harness_.output(absl::StrCat("urgent", i)).started;
  // The urgent tenant had all four rows before the other one arrived.
  EXPECT_NEAR(of_urgent - static_cast<int>(kRows), of_other, 4);
}

TEST_P(FairnessTest, PriorityOrdersTheRequestsOfItsTenant) {
  Submit("a", 0, 5);
  Submit("a", 1, -5);
  Submit("b", 0, 0);
  Submit("b", 1, -100);
  Step();
  EXPECT_THAT(starts_, ElementsAre("a1", "b1", "a0", "b0"));
}

// Prompts in progress share the steps in the same way.
TEST_P(FairnessTest, UrgentPromptLeavesTokensForAnotherTenant) {
  for (int i = 0; i < 3; ++i) Submit("urgent", i, -100, 4000, 1);
  Step();
  Submit("other", 0, 0, 2000, 1);
  for (int steps = 0; !harness_.output("other0").ended; ++steps) {
    ASSERT_LT(steps, 12) << "its prompt has the length of four steps";
    Step();
  }
  EXPECT_FALSE(harness_.output("urgent2").ended);
}

}  // namespace
}  // namespace quire::engine
