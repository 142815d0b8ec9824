// Golden traces of the rows and chunks of every step (docs/scheduling.md).

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

HarnessOptions TraceOptions(std::uint32_t usable_pages, std::int32_t budget) {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = usable_pages, .page_size = 64, .max_rows = 64, .max_context_tokens = 8192});
  options.engine.max_step_tokens = budget;
  options.engine.prefill_chunk_tokens = budget;
  options.engine.max_step_prompt_tokens = budget;
  return options;
}

std::vector<std::uint32_t> StepTokens(const Harness& harness) {
  std::vector<std::uint32_t> tokens;
  for (const FakeStep& step : harness.runner.steps()) tokens.push_back(step.num_tokens);
  return tokens;
}

std::vector<std::uint32_t> NewTokens(const FakeStep& step) {
  std::vector<std::uint32_t> tokens;
  for (const auto& [before, count] : step.rows) tokens.push_back(count);
  return tokens;
}

TEST(SchedulerTraceTest, LongPromptRunsInChunks) {
  Harness harness(TraceOptions(128, 2048));
  harness.Submit(MakeRequest("a", MakePrompt(1, 5000), 3));
  harness.RunUntilIdle();
  EXPECT_THAT(StepTokens(harness), ElementsAre(2048, 2048, 904, 1, 1));
  EXPECT_EQ(harness.output("a").tokens.at(0).size(), 3);
}

TEST(SchedulerTraceTest, FortyPromptsShareTheBudget) {
  Harness harness(TraceOptions(512, 2048));
  for (int i = 0; i < 40; ++i) {
    harness.Submit(
        MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<std::uint64_t>(i), 300), 4));
  }
  std::vector<std::size_t> decodes, prefills;
  while (!harness.core.idle()) {
    ASSERT_TRUE(harness.Step());
    decodes.push_back(harness.core.last_plan().decodes.size());
    prefills.push_back(harness.core.last_plan().prefills.size());
  }
  EXPECT_THAT(StepTokens(harness), ElementsAre(1992, 2042, 1985, 2012, 1992, 2012, 63, 14, 7, 1));
  EXPECT_THAT(decodes, ElementsAre(0, 6, 13, 20, 20, 20, 19, 14, 7, 1));
  EXPECT_THAT(prefills, ElementsAre(7, 8, 7, 7, 8, 7, 1, 0, 0, 0));
  EXPECT_THAT(NewTokens(harness.runner.steps()[0]), ElementsAre(300, 300, 300, 300, 300, 300, 192));
  EXPECT_EQ(harness.runner.steps()[1].rows[6], std::make_pair(192u, 108u));
}

TEST(SchedulerTraceTest, ThirdRequestWaitsForPages) {
  Harness harness(TraceOptions(48, 8192));
  for (int i = 0; i < 3; ++i) {
    harness.Submit(
        MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<std::uint64_t>(i), 1000), 200));
  }
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.core.scheduler().running().size(), 2);
  EXPECT_EQ(harness.core.scheduler().waiting(), 1);
  while (!harness.output("r0").ended) {
    EXPECT_FALSE(harness.output("r2").started);
    ASSERT_TRUE(harness.Step());
  }
  ASSERT_TRUE(harness.Step());
  EXPECT_TRUE(harness.output("r2").started);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("r2").tokens.at(0).size(), 200);
  EXPECT_EQ(harness.probe.steps.preemptions(), 0);
}

TEST(SchedulerTraceTest, RejectsRequestsThatCanNeverFit) {
  Harness harness(TraceOptions(40, 2048));
  harness.Submit(MakeRequest("a", MakePrompt(1, 3000), 100));
  const absl::Status status = harness.output("a").status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto reason = GetErrorReason(status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "EXCEEDS_CAPACITY");
  EXPECT_EQ(reason->Find("pages_needed"), "49");
  EXPECT_EQ(reason->Find("pages_total"), "40");
  EXPECT_TRUE(harness.core.idle());
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_rejected_total"), 1);
}

TEST(SchedulerTraceTest, PromptCapBoundsAStep) {
  HarnessOptions options = TraceOptions(128, 2048);
  options.engine.max_step_prompt_tokens = 512;
  Harness harness(options);
  harness.Submit(MakeRequest("a", MakePrompt(1, 700), 2));
  harness.Submit(MakeRequest("b", MakePrompt(2, 700), 2));
  harness.RunUntilIdle();
  // 188 tokens complete a. b gets 5 pages of the rest.
  EXPECT_THAT(NewTokens(harness.runner.steps()[1]), ElementsAre(188, 320));
  EXPECT_THAT(NewTokens(harness.runner.steps()[2]), ElementsAre(1, 380));
}

// A request that finds its prefix but no room for the rest is retried in every step.
TEST(SchedulerTraceTest, RetriedAdmissionsCountTheirHitsOnce) {
  HarnessOptions options = TraceOptions(8, 2048);
  options.engine.admission = AdmissionMode::kOvercommit;
  Harness harness(options);
  std::vector<std::int32_t> prompt = MakePrompt(1, 321);
  harness.Submit(MakeRequest("a", prompt, 20));  // takes 6 pages
  ASSERT_TRUE(harness.Step());
  ASSERT_TRUE(harness.Step());
  const std::vector<std::int32_t> rest = MakePrompt(2, 128);
  prompt.resize(320);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  harness.Submit(MakeRequest("b", prompt, 20));  // needs 7 pages of its own, and one to grow
  for (int step = 0; step < 10; ++step) {
    ASSERT_TRUE(harness.Step());
    ASSERT_FALSE(harness.output("b").started);
  }
  EXPECT_EQ(harness.cache->stats().hit_tokens, 0);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("b").cached_tokens, 320);
  EXPECT_EQ(harness.cache->stats().hit_tokens, 320);
  EXPECT_EQ(harness.cache->stats().queried_tokens, 321 + 448);
}

TEST(SchedulerTraceTest, PriorityRunsFirstAndAgeingCatchesUp) {
  HarnessOptions options = TraceOptions(128, 2048);
  options.engine.max_running_sequences = 1;
  Harness harness(options);
  harness.Submit(MakeRequest("running", MakePrompt(1, 64), 5));
  ASSERT_TRUE(harness.Step());
  Request old = MakeRequest("old", MakePrompt(2, 64), 1);
  old.priority = 2;
  harness.Submit(std::move(old));
  harness.clock.Advance(absl::Seconds(25));  // two ageing intervals give priority 0
  Request late = MakeRequest("late", MakePrompt(3, 64), 1);
  late.priority = 0;
  harness.Submit(std::move(late));
  Request urgent = MakeRequest("urgent", MakePrompt(4, 64), 1);
  urgent.priority = -5;
  harness.Submit(std::move(urgent));
  std::vector<std::string> order;
  while (!harness.core.idle()) {
    ASSERT_TRUE(harness.Step());
    for (const ScheduledRequest* live : harness.core.last_plan().started)
      order.push_back(live->request.id);
  }
  EXPECT_THAT(order, ElementsAre("urgent", "old", "late"));
}

}  // namespace
}  // namespace quire::engine
