// Overlap scheduling (docs/scheduling.md, section 7): allowed and forbidden effects of a step in
// flight.

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/testing/reason_of.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;

constexpr int kOverlapped = 2;

HarnessOptions Small(int steps_in_flight, std::uint32_t usable_pages = 30) {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = usable_pages, .page_size = 16, .max_rows = 12, .max_context_tokens = 320},
      steps_in_flight);
  options.engine.prefill_chunk_tokens = 32;
  options.engine.max_step_tokens = 96;
  options.engine.max_step_prompt_tokens = 64;
  options.runner.end_token = kEosToken;
  options.runner.end_period = 20;
  return options;
}

std::int64_t OverlapSteps(const Harness& harness) {
  return harness.core.Stats(harness.clock.Now()).overlap_steps;
}

// Tokens computed by steps are prompt tokens, recomputed tokens and sampled tokens except first
// ones. Surplus rows are included.
void ExpectBalance(Harness& harness) {
  std::int64_t kept = 0, choices = 0;
  for (const auto& [id, output] : harness.outputs()) {
    for (const auto& [choice, tokens] : output.tokens) {
      kept += static_cast<std::int64_t>(tokens.size());
      ++choices;
    }
  }
  const double computed = MetricValue(
      harness.registry, "quire_prompt_tokens_total{model_name=\"m\",source=\"compute\"}");
  EXPECT_EQ(MetricSum(harness.registry, "quire_engine_step_tokens_sum"),
            computed + MetricSum(harness.registry, "quire_recomputed_tokens_total") +
                static_cast<double>(kept - choices) +
                MetricSum(harness.registry, "quire_discarded_tokens_total"));
  EXPECT_EQ(harness.cache->stats().used_pages, 0);
}

// Requests with every kind of ending and of sampling option.
std::vector<Request> MixedRequests(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = MakeRequest(absl::StrCat("r", i), MakePrompt(random() % 6, 1 + random() % 90),
                                  1 + static_cast<int>(random() % 60));
    if (i % 2 == 1) request.sampling.temperature = 1;
    request.sampling.seed = random();
    if (i % 5 == 4) request.sampling.choice_count = 3;
    if (i % 6 == 0) request.sampling.presence_penalty = 0.5f;
    if (i % 7 == 3) request.output.prompt_logprobs = 1;
    if (i % 4 == 1) request.stopping.min_tokens = static_cast<int>(random() % 20);
    if (i % 4 == 2) {
      for (int k = 0; k < 8; ++k) {
        request.stopping.stop_token_ids.push_back(static_cast<std::int32_t>(random() % 256));
      }
    }
    if (i % 9 == 8) request.stopping.ignore_eos = true;
    if (i % 3 == 0) {
      request.sampling.logit_bias.emplace_back(static_cast<std::int32_t>(random() % 256), 2.0f);
    }
    request.output.logprobs = i % 3 - 1;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST(EngineOverlapTest, AnswersEqualThoseWithoutOverlap) {
  std::int64_t surplus = 0;
  for (int round = 0; round < 12; ++round) {
    const std::vector<Request> requests = MixedRequests(static_cast<unsigned>(round), 40);
    std::map<std::string, Harness::Output> expected;
    for (const int in_flight : {1, kOverlapped}) {
      HarnessOptions options = Small(in_flight);
      if (round % 2 == 1) options.engine.admission = AdmissionMode::kOvercommit;
      Harness harness(options);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        harness.Submit(requests[i]);
        if (i % 4 == 3) harness.Step();
      }
      harness.RunUntilIdle();
      ExpectBalance(harness);
      if (in_flight == 1) {
        EXPECT_EQ(OverlapSteps(harness), 0);
        EXPECT_EQ(MetricSum(harness.registry, "quire_discarded_tokens_total"), 0);
        expected = harness.outputs();
        continue;
      }
      EXPECT_GT(OverlapSteps(harness), harness.core.Stats(harness.clock.Now()).steps / 8);
      surplus +=
          static_cast<std::int64_t>(MetricSum(harness.registry, "quire_discarded_tokens_total"));
      for (const auto& [id, output] : harness.outputs()) {
        SCOPED_TRACE(absl::StrCat("round ", round, ", request ", id));
        ASSERT_TRUE(output.status.ok()) << output.status;
        EXPECT_EQ(output.tokens, expected[id].tokens);
        EXPECT_EQ(output.logprobs, expected[id].logprobs);
        EXPECT_EQ(output.finish, expected[id].finish);
        EXPECT_EQ(output.prompt_positions, expected[id].prompt_positions);
        EXPECT_EQ(output.prompt_logprobs, expected[id].prompt_logprobs);
      }
    }
  }
  EXPECT_GT(surplus, 100) << "no choice ended while a row of it was in flight";
}

TEST(EngineOverlapTest, PredictableEndsHaveNoSurplusRow) {
  HarnessOptions options = Small(kOverlapped);
  options.runner.end_period = 0;
  Harness harness(options);
  harness.Submit(MakeRequest("a", MakePrompt(1, 70), 6));
  harness.RunUntilIdle();
  std::vector<std::uint32_t> tokens;
  for (const FakeStep& step : harness.runner.steps()) tokens.push_back(step.num_tokens);
  EXPECT_THAT(tokens, ElementsAre(32, 32, 6, 1, 1, 1, 1, 1));
  EXPECT_EQ(OverlapSteps(harness), 7);
  EXPECT_EQ(MetricSum(harness.registry, "quire_discarded_tokens_total"), 0);
}

TEST(EngineOverlapTest, EndOfSequenceCausesOneSurplusRow) {
  HarnessOptions options = Small(kOverlapped);
  options.runner.end_period = 1;
  Harness harness(options);
  Request request = MakeRequest("a", MakePrompt(1, 20), 50);
  request.stopping.min_tokens = 5;
  harness.Submit(request);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("a").tokens.at(0).size(), 6);
  EXPECT_EQ(harness.output("a").finish.at(0), FinishReason::kEos);
  EXPECT_EQ(harness.runner.steps().size(), 7);
  EXPECT_EQ(MetricValue(harness.registry,
                        "quire_discarded_tokens_total{cause=\"after_stop\",model_name=\"m\"}"),
            1);
  ExpectBalance(harness);
}

TEST(EngineOverlapTest, PagesOfAnEndedChoiceStayUntilItsSurplusRow) {
  HarnessOptions options = Small(kOverlapped);
  options.runner.end_period = 1;
  Harness harness(options);
  harness.Submit(MakeRequest("a", MakePrompt(1, 20), 50));
  ASSERT_TRUE(harness.Step());
  ASSERT_TRUE(harness.Step());  // launches the surplus row, then collects the last token
  EXPECT_TRUE(harness.output("a").ended);
  EXPECT_EQ(harness.core.steps_in_flight(), 1);
  EXPECT_EQ(harness.cache->stats().used_pages, 2);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.core.steps_in_flight(), 0);
  EXPECT_EQ(harness.cache->stats().used_pages, 0);
  EXPECT_FALSE(harness.Step());
}

TEST(EngineOverlapTest, PenaltiesDoNotPreventOverlap) {
  std::map<std::string, Harness::Output> expected;
  for (const int in_flight : {1, kOverlapped}) {
    HarnessOptions options = Small(in_flight);
    options.runner.end_period = 0;
    Harness harness(options);
    for (int i = 0; i < 4; ++i) {
      Request request = MakeRequest(absl::StrCat("r", i), MakePrompt(1, 16), 30);
      if (i == 1) request.sampling.repetition_penalty = 1.5f;
      if (i == 2) request.sampling.frequency_penalty = 0.5f;
      harness.Submit(request);
    }
    harness.RunUntilIdle();
    ExpectBalance(harness);
    // The prompts take one step and each further token takes one. All steps except the first are
    // launched ahead.
    EXPECT_EQ(harness.runner.steps().size(), 30);
    EXPECT_EQ(OverlapSteps(harness), in_flight == 1 ? 0 : 29);
    if (in_flight == 1) {
      expected = harness.outputs();
      EXPECT_NE(expected["r1"].tokens, expected["r0"].tokens) << "the penalty has no effect";
      continue;
    }
    for (const auto& [id, output] : harness.outputs()) {
      EXPECT_EQ(output.tokens, expected[id].tokens) << id;
    }
  }
}

TEST(EngineOverlapTest, ForksWaitForTheStepInFlight) {
  HarnessOptions options = Small(kOverlapped);
  options.runner.end_period = 0;
  Harness harness(options);
  Request forked = MakeRequest("n", MakePrompt(2, 20), 10);
  forked.sampling.choice_count = 3;
  harness.Submit(forked);
  harness.RunUntilIdle();
  EXPECT_EQ(OverlapSteps(harness), 8);  // all except the prompt's step and the first after the fork
}

TEST(EngineOverlapTest, NonFiniteSurplusRowPoisonsOnlyItsPages) {
  HarnessOptions options = Small(kOverlapped);
  options.runner.end_period = 1;
  options.runner.poison_token = kEosToken;  // computing the end token gives NaN
  Harness harness(options);
  const Request request = MakeRequest("a", MakePrompt(1, 40), 50);
  harness.Submit(request);
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("a").status.ok()) << harness.output("a").status;
  EXPECT_THAT(harness.output("a").tokens.at(0), ElementsAre(kEosToken));
  EXPECT_EQ(MetricSum(harness.registry, "quire_engine_non_finite_total"), 0);
  EXPECT_TRUE(harness.cache->has_step_work()) << "the pages are queued for clearing";
  const auto evicted = [&](absl::string_view cause) {
    return MetricValue(harness.registry, absl::StrCat("quire_kv_cache_evicted_pages_total{cause=\"",
                                                      cause, "\",model_name=\"m\"}"));
  };
  EXPECT_GT(evicted("invalidate"), 0);
  EXPECT_EQ(evicted("allocation"), 0);
  Request again = request;
  again.id = "again";
  harness.Submit(again);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("again").cached_tokens, 32)
      << "full pages stay, the partial page is removed";
  EXPECT_EQ(harness.output("again").tokens, harness.output("a").tokens);
}

TEST(EngineOverlapTest, CancelledNonFinitePromptLeavesNoPoisonedPage) {
  HarnessOptions options = Small(kOverlapped);
  options.engine.prefill_chunk_tokens = 16;
  Harness harness(options);
  std::vector<std::int32_t> sick = MakePrompt(1, 64);
  sick[40] = kPoisonToken;
  harness.Submit(MakeRequest("well", {sick.begin(), sick.begin() + 34}, 1));
  harness.RunUntilIdle();
  const auto live = harness.Submit(MakeRequest("sick", sick, 10));
  harness.Step();
  harness.Step();
  // The page of the poisoned token is published, and the step in flight will reveal it.
  harness.Cancel(live, CancelSource::kApi);
  harness.RunUntilIdle();
  EXPECT_EQ(ReasonOf(harness.output("sick").status), "CANCELLED_BY_CALLER");
  harness.Submit(MakeRequest("as sick", sick, 10));
  harness.RunUntilIdle();
  EXPECT_GE(harness.output("as sick").cached_tokens, 32);
  EXPECT_LE(harness.output("as sick").cached_tokens, 40);
}

// Pages of a cancelled request turn out to be poisoned after another request was launched whose
// choices need copies of a page.
TEST(EngineOverlapTest, SafeForkWaitsForPagesThatAreBeingCleared) {
  for (const bool skips : {false, true}) {
    HarnessOptions options = Small(kOverlapped, /*usable_pages=*/22);
    options.engine.prefill_chunk_tokens = 1000;
    options.engine.max_step_tokens = 1000;
    options.engine.max_step_prompt_tokens = 1000;
    options.runner.end_period = 0;
    Harness harness(options);
    std::vector<std::int32_t> sick = MakePrompt(1, 150);
    sick.push_back(kPoisonToken);
    const auto live = harness.Submit(MakeRequest("sick", sick, 1));
    harness.Step();
    Request forked = MakeRequest("forked", MakePrompt(2, 170), 5);
    forked.sampling.choice_count = 4;
    forked.cache.skip_read = skips;
    forked.cache.skip_write = skips;
    harness.Submit(forked);
    harness.Cancel(live, CancelSource::kApi);
    harness.RunUntilIdle();
    EXPECT_EQ(harness.core.Stats(harness.clock.Now()).preemptions, 0);
    EXPECT_TRUE(harness.output("forked").status.ok()) << harness.output("forked").status;
    EXPECT_EQ(harness.output("forked").tokens.size(), 4);
    for (const auto& [choice, tokens] : harness.output("forked").tokens) {
      EXPECT_EQ(tokens.size(), 5) << choice;
    }
  }
}

// The other prompt would fit, but not the copies of the choices besides. The pages of the cancelled
// request are in use by the step in flight and then have to be cleared.
TEST(EngineOverlapTest, AdmissionLeavesThePagesOfAPlannedFork) {
  HarnessOptions options = Small(kOverlapped, /*usable_pages=*/30);
  options.engine.prefill_chunk_tokens = 1000;
  options.engine.max_step_tokens = 1000;
  options.engine.max_step_prompt_tokens = 1000;
  options.runner.end_period = 0;
  Harness harness(options);
  harness.runner.RecordSteps(true);
  std::vector<std::int32_t> sick = MakePrompt(1, 150);
  sick.push_back(kPoisonToken);
  const auto live = harness.Submit(MakeRequest("sick", sick, 1));
  harness.Step();
  Request forked = MakeRequest("forked", MakePrompt(2, 170), 5);
  forked.sampling.choice_count = 4;
  harness.Submit(forked);
  harness.Submit(MakeRequest("other", MakePrompt(3, 130), 5));
  harness.Cancel(live, CancelSource::kApi);
  harness.RunUntilIdle();
  using Rows = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  ASSERT_GT(harness.runner.steps().size(), 1);
  EXPECT_EQ(harness.runner.steps()[1].rows, (Rows{{0, 170}})) << "the other prompt waits";
  EXPECT_EQ(harness.core.Stats(harness.clock.Now()).preemptions, 0);
  EXPECT_EQ(harness.output("forked").tokens.size(), 4);
  for (const auto& [choice, tokens] : harness.output("forked").tokens) {
    EXPECT_EQ(tokens.size(), 5) << choice;
  }
  EXPECT_EQ(harness.output("other").tokens.at(0).size(), 5);
}

// Harness::Step checks the reservations after each step.
TEST(EngineOverlapTest, SafeModeNeverPreempts) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    HarnessOptions options = Small(1 + round % 2, /*usable_pages=*/22);
    options.engine.prefill_chunk_tokens = round % 4 < 2 ? 32 : 1000;
    Harness harness(options);
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int32_t> prompt = MakePrompt(random() % 3, 10 + random() % 150);
      if (random() % 3 == 0) prompt[random() % prompt.size()] = kPoisonToken;
      const auto max_tokens = 1 + static_cast<std::int32_t>(random() % 20);
      Request request = MakeRequest(absl::StrCat("r", i), prompt, max_tokens);
      request.sampling.choice_count = 1 + static_cast<std::int32_t>(random() % 3);
      request.cache.skip_read = random() % 3 == 0;
      request.cache.skip_write = random() % 3 == 0;
      live.push_back(harness.Submit(request));
      for (int step = 0; step < 3; ++step) harness.Step();
      if (random() % 2 == 0) harness.Cancel(live[random() % live.size()], CancelSource::kApi);
    }
    harness.RunUntilIdle();
    EXPECT_EQ(harness.core.Stats(harness.clock.Now()).preemptions, 0);
    for (const auto& [id, output] : harness.outputs()) EXPECT_TRUE(output.ended) << id;
  }
}

TEST(EngineOverlapTest, NonFiniteRowsEndOnlyTheirRequest) {
  for (int round = 0; round < 4; ++round) {
    Harness harness(Small(kOverlapped));
    std::vector<Request> requests = MixedRequests(static_cast<unsigned>(round), 20);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (i % 4 == 0) std::get<TokenPrompt>(requests[i].prompt).push_back(kPoisonToken);
      harness.Submit(requests[i]);
    }
    harness.RunUntilIdle();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Harness::Output& output = harness.output(requests[i].id);
      if (i % 4 == 0) {
        EXPECT_EQ(ReasonOf(output.status), "NON_FINITE_LOGITS");
        continue;
      }
      Harness alone(Small(1));
      alone.Submit(requests[i]);
      alone.RunUntilIdle();
      EXPECT_EQ(output.tokens, alone.output(requests[i].id).tokens);
    }
    ExpectBalance(harness);
  }
}

TEST(EngineOverlapTest, CancelsWithRowsInFlightKeepTheBalance) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 6; ++round) {
    HarnessOptions options = Small(kOverlapped);
    if (round % 2 == 1) options.engine.admission = AdmissionMode::kOvercommit;
    Harness harness(options);
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    for (const Request& request : MixedRequests(static_cast<unsigned>(round), 60)) {
      live.push_back(harness.Submit(request));
      harness.Step();
      if (random() % 2 == 0) harness.Cancel(live[random() % live.size()], CancelSource::kApi);
    }
    harness.RunUntilIdle();
    ExpectBalance(harness);
  }
}

// Parameters: steps in flight, and whether the launch or the collection fails.
class FailedStepTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Steps, FailedStepTest,
                         ::testing::Combine(::testing::Values(1, kOverlapped), ::testing::Bool()));

TEST_P(FailedStepTest, EndsOnlyItsRequests) {
  const auto [in_flight, at_launch] = GetParam();
  const std::vector<Request> requests = MixedRequests(3, 16);
  std::map<std::string, Harness::Output> alone;
  for (const Request& request : requests) {
    Harness harness(Small(1));
    harness.Submit(request);
    harness.RunUntilIdle();
    alone[request.id] = harness.output(request.id);
  }
  for (int at = 1; at < 30; ++at) {
    SCOPED_TRACE(at);
    Harness harness(Small(in_flight, /*usable_pages=*/100));
    int calls = 0;
    auto fail = [&] { return ++calls == at ? absl::InternalError("on fire") : absl::OkStatus(); };
    if (at_launch) {
      harness.runner.SetHook([&](const runtime::StepBatch&) { return fail(); });
    } else {
      harness.runner.SetCollectHook(fail);
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      harness.Submit(requests[i]);
      if (i % 2 == 1) harness.Step();
    }
    harness.RunUntilIdle();
    int failed = 0;
    for (const Request& request : requests) {
      const Harness::Output& output = harness.output(request.id);
      const Harness::Output& whole = alone.at(request.id);
      if (output.status.ok()) {
        EXPECT_EQ(output.tokens, whole.tokens);
        EXPECT_EQ(output.finish, whole.finish);
        continue;
      }
      ++failed;
      EXPECT_EQ(ReasonOf(output.status), "ENGINE_ERROR");
      for (const auto& [choice, tokens] : output.tokens) {
        const std::vector<std::int32_t>& all = whole.tokens.at(choice);
        ASSERT_LE(tokens.size(), all.size());
        EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), all.begin()));
      }
    }
    EXPECT_GT(failed, 0);
    EXPECT_LT(failed, 16);
    EXPECT_EQ(harness.cache->stats().used_pages, 0);
  }
}

TEST_P(FailedStepTest, LostDeviceStopsTheCoreWithEverythingAccountedFor) {
  const auto [in_flight, at_launch] = GetParam();
  Harness harness(Small(in_flight));
  int calls = 0;
  const absl::Status lost = WithReason(absl::UnavailableError("no device"), Reason::kDeviceLost);
  auto fail = [&] { return ++calls >= 9 ? lost : absl::OkStatus(); };
  if (at_launch) {
    harness.runner.SetHook([&](const runtime::StepBatch&) { return fail(); });
  } else {
    harness.runner.SetCollectHook(fail);
  }
  for (const Request& request : MixedRequests(4, 16)) harness.Submit(request);
  const std::shared_ptr<AcceptedRequest> preparing =
      harness.Arrive(MakeRequest("preparing", MakePrompt(1, 5), 5));
  for (int i = 0; i < 50 && harness.core.fatal_error().ok(); ++i) harness.Step();
  EXPECT_EQ(harness.core.fatal_error(), lost);
  EXPECT_FALSE(harness.core.idle()) << "requests end only when health has turned";
  EXPECT_FALSE(harness.Step());
  harness.core.FailAll(harness.clock.Now());
  harness.Settle();
  EXPECT_TRUE(harness.core.idle());
  int lost_requests = 0;
  for (const auto& [id, output] : harness.outputs()) {
    EXPECT_TRUE(output.ended);
    if (output.status.ok()) continue;
    ++lost_requests;
    EXPECT_EQ(ReasonOf(output.status), "DEVICE_ERROR");
  }
  EXPECT_GT(lost_requests, 5);
  harness.Prepare(preparing);
  EXPECT_EQ(harness.cache->stats().used_pages, 0);
  EXPECT_EQ(harness.limiter.queued_requests(), 0);
  EXPECT_EQ(harness.limiter.queued_tokens(), 0);
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_accepted_total"),
            MetricSum(harness.registry, "quire_requests_completed_total") +
                MetricSum(harness.registry, "quire_requests_failed_total"));
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_rejected_total"), 1);
}

TEST(EngineOverlapTest, RowsDistinguishPromptTokens) {
  for (const int in_flight : {1, kOverlapped}) {
    HarnessOptions options = Small(in_flight, /*usable_pages=*/22);
    options.engine.admission = AdmissionMode::kOvercommit;
    options.runner.end_period = 0;
    Harness harness(options);
    int mixed = 0;
    harness.runner.SetHook([&](const runtime::StepBatch& batch) {
      for (const runtime::StepRow& row : batch.rows) {
        const std::uint32_t end = row.cache_length + row.num_tokens;
        EXPECT_EQ(row.prompt_tokens, std::min(end, 40u) - std::min(row.cache_length, 40u));
        mixed += row.prompt_tokens > 0 && row.prompt_tokens < row.num_tokens;
      }
      return absl::OkStatus();
    });
    for (int i = 0; i < 12; ++i) {
      harness.Submit(
          MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i), 40), 100));
    }
    harness.RunUntilIdle();
    EXPECT_GT(harness.probe.steps.preemptions(), 3);
    EXPECT_GT(mixed, 0) << "no preempted sequence was computed again";
  }
}

}  // namespace
}  // namespace quire::engine
