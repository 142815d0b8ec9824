// Order of prefill (docs/scheduling.md, section 6): short prompts overtake long ones, and long ones
// always make progress.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

constexpr std::uint32_t kPageSize = 64;
constexpr std::int32_t kStepTokens = 512;

HarnessOptions PromptOptions() {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = 1024, .page_size = kPageSize, .max_rows = 64, .max_context_tokens = 16384});
  options.engine.max_step_tokens = kStepTokens;
  options.engine.prefill_chunk_tokens = kStepTokens;
  options.engine.max_step_prompt_tokens = kStepTokens;
  return options;
}

Request PromptRequest(const std::string& id, std::uint64_t seed, std::size_t tokens) {
  return MakeRequest(id, MakePrompt(seed, tokens), 1);
}

// Runs steps until the request has its token.
int StepsUntilEnd(Harness& harness, const std::string& id) {
  int steps = 0;
  for (; !harness.output(id).ended; ++steps) EXPECT_TRUE(harness.Step());
  return steps;
}

std::map<std::string, std::uint32_t> Chunks(const Harness& harness) {
  std::map<std::string, std::uint32_t> chunks;
  for (const PlannedRow& prefill : harness.core.last_plan().prefills) {
    chunks[prefill.sequence->request->request.id] = prefill.num_tokens;
  }
  return chunks;
}

using ChunkMap = std::map<std::string, std::uint32_t>;

TEST(PromptOrderTest, ShortPromptOvertakesALongOne) {
  Harness harness(PromptOptions());
  harness.Submit(PromptRequest("long", 1, 3000));
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(Chunks(harness), (ChunkMap{{"long", 512}}));
  harness.Submit(PromptRequest("short", 2, 100));
  ASSERT_TRUE(harness.Step());
  // The long prompt gets the rest of the budget, rounded to a page boundary.
  EXPECT_EQ(Chunks(harness), (ChunkMap{{"short", 100}, {"long", 384}}));
  EXPECT_TRUE(harness.output("short").ended);
  EXPECT_FALSE(harness.output("long").ended);
}

// Returns the length of the prompt that is served first while a long and then a short prompt run.
std::uint32_t FirstPromptTokens(const SchedulerPolicy& policy) {
  const PoolOptions pool = {.usable_pages = 64, .page_size = 16};
  EngineOptions options = MakeOptions(pool);
  options.max_step_prompt_tokens = 16;
  const std::unique_ptr<cache::CacheManager> cache = MakeCache(pool);
  std::vector<std::unique_ptr<ScheduledRequest>> requests;
  Scheduler scheduler(options, cache.get(), policy);
  for (const std::size_t tokens : {400, 30}) {
    Request request = MakeRequest("", {}, 1);
    request.cache.skip_read = true;
    ScheduledRequest& added = *requests.emplace_back(std::make_unique<ScheduledRequest>(
        std::make_shared<AcceptedRequest>(std::move(request), requests.size(), 0, nullptr)));
    added.prompt.max_tokens = 1;
    added.prompt.max_pages_of_one_choice =
        cache->demand().PagesFor(static_cast<std::uint32_t>(tokens));
    added.first().tokens = MakePrompt(tokens, tokens);
    added.first().prompt_tokens = static_cast<std::uint32_t>(tokens);
    scheduler.Add(&added);
    scheduler.Plan(absl::UnixEpoch(), /*has_step_in_flight=*/false);
  }
  const StepPlan& plan = scheduler.Plan(absl::UnixEpoch(), /*has_step_in_flight=*/false);
  EXPECT_FALSE(plan.prefills.empty());
  const std::uint32_t first = plan.empty() ? 0 : plan.prefills.front().sequence->prompt_tokens;
  for (const auto& request : requests) scheduler.Remove(*request, /*invalidate=*/false);
  return first;
}

TEST(PromptOrderTest, PolicySelectsHowOftenTheOldestPromptIsFirst) {
  EXPECT_EQ(FirstPromptTokens({.steps_per_oldest_first = 100}), 30u);
  EXPECT_EQ(FirstPromptTokens({.steps_per_oldest_first = 1}), 400u);
}

// The order of admission does not matter. Running requests compete with each other.
TEST(PromptOrderTest, TheShortestRemainderComesFirst) {
  Harness harness(PromptOptions());
  harness.Submit(PromptRequest("a", 1, 4000));
  ASSERT_TRUE(harness.Step());
  harness.Submit(PromptRequest("b", 2, 700));
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(Chunks(harness), (ChunkMap{{"b", 512}}));
  harness.Submit(PromptRequest("c", 3, 100));
  ASSERT_TRUE(harness.Step());
  // b has 188 tokens left, c 100, a 3488.
  EXPECT_EQ(Chunks(harness), (ChunkMap{{"b", 188}, {"c", 100}, {"a", 192}}));
}

// Prompts of about the same length keep the order of their arrival.
TEST(PromptOrderTest, EqualPromptsKeepArrivalOrder) {
  Harness harness(PromptOptions());
  for (int i = 0; i < 6; ++i) {
    harness.Submit(PromptRequest(absl::StrCat("r", i), static_cast<std::uint64_t>(i),
                                 1000 - 60 * static_cast<std::size_t>(i)));
  }
  int last = 0;
  for (int i = 0; i < 6; ++i) {
    const int steps = StepsUntilEnd(harness, absl::StrCat("r", i));
    EXPECT_LE(steps, 2);
    last += steps;
    for (int later = i + 1; later < 6; ++later) {
      EXPECT_FALSE(harness.output(absl::StrCat("r", later)).ended) << i;
    }
  }
  EXPECT_LE(last, 12);
}

// Two long prompts, one running and one waiting, do not delay a short one behind them.
TEST(PromptOrderTest, ShortPromptOvertakesAWaitingLongOne) {
  Harness harness(PromptOptions());
  harness.Submit(PromptRequest("long0", 1, 3000));
  ASSERT_TRUE(harness.Step());
  harness.Submit(PromptRequest("long1", 2, 3000));
  harness.Submit(PromptRequest("short", 3, 100));
  EXPECT_LE(StepsUntilEnd(harness, "short"), 2);
}

TEST(PromptOrderTest, PriorityPrecedesLength) {
  Harness harness(PromptOptions());
  Request first = PromptRequest("first", 1, 2000);
  first.priority = -1;
  harness.Submit(std::move(first));
  ASSERT_TRUE(harness.Step());
  harness.Submit(PromptRequest("short", 2, 100));
  EXPECT_EQ(StepsUntilEnd(harness, "first"), 3);
  EXPECT_FALSE(harness.output("short").ended);
}

// Short prompts fill every step while the long one waits. In every fourth step the oldest prompt
// comes first, so n chunks take at most 4 n steps.
TEST(PromptOrderTest, LongPromptProgressesWhileShortOnesFillEveryStep) {
  Harness harness(PromptOptions());
  harness.Submit(PromptRequest("long", 1, 5000));
  ASSERT_TRUE(harness.Step());
  const int chunks = (5000 + kStepTokens - 1) / kStepTokens;
  int steps = 1, next = 0;
  for (; !harness.output("long").ended; ++steps) {
    ASSERT_LE(steps, 4 * chunks);
    while (harness.core.scheduler().waiting() < 8) {
      harness.Submit(
          PromptRequest(absl::StrCat("short", next), static_cast<std::uint64_t>(10 + next), 256));
      ++next;
    }
    harness.clock.Advance(absl::Milliseconds(100));
    ASSERT_TRUE(harness.Step());
  }
  EXPECT_GT(steps, 3 * chunks) << "the short prompts left too much time";
}

// Here the long prompt has not started. It is admitted once it has waited one interval longer than
// the new ones.
TEST(PromptOrderTest, LongPromptStartsWhileShortOnesFillEveryStep) {
  HarnessOptions options = PromptOptions();
  options.engine.priority_aging_interval = absl::Seconds(10);
  Harness harness(options);
  int next = 0;
  const auto fill = [&] {
    while (harness.core.scheduler().waiting() < 8) {
      harness.Submit(
          PromptRequest(absl::StrCat("short", next), static_cast<std::uint64_t>(10 + next), 256));
      ++next;
    }
  };
  fill();
  ASSERT_TRUE(harness.Step());
  harness.Submit(PromptRequest("long", 1, 5000));
  absl::Duration waited;
  while (!harness.output("long").started) {
    ASSERT_LE(waited, absl::Seconds(11));
    fill();
    harness.clock.Advance(absl::Milliseconds(100));
    waited += absl::Milliseconds(100);
    ASSERT_TRUE(harness.Step());
  }
  EXPECT_GE(waited, absl::Seconds(9)) << "the short prompts left too much room";
}

}  // namespace
}  // namespace quire::engine
