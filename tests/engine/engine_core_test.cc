// Tests of all ends of a request, and of their effect on other requests.

#include "engine/step/engine_core.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/testing/reason_of.h"

namespace quire::engine {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

void ExpectAllPagesBack(const Harness& harness) {
  EXPECT_EQ(harness.cache->stats().used_pages, 0);
  EXPECT_EQ(harness.limiter.queued_requests(), 0);
  EXPECT_EQ(harness.limiter.queued_tokens(), 0);
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_running"), 0);
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_waiting"), 0);
  const double accepted = MetricSum(harness.registry, "quire_requests_accepted_total");
  EXPECT_EQ(accepted, MetricSum(harness.registry, "quire_requests_completed_total") +
                          MetricSum(harness.registry, "quire_requests_failed_total") +
                          MetricSum(harness.registry, "quire_requests_cancelled_total"));
  EXPECT_EQ(MetricSum(harness.registry, "quire_requests_received_total"),
            accepted + MetricSum(harness.registry, "quire_requests_rejected_total"));
  EXPECT_EQ(MetricSum(harness.registry, "quire_expired_request_tokens_total"), 0);
}

// Every test runs with one step at a time and with overlapped steps.
class EngineCoreTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, EngineCoreTest, ::testing::Values(1, 2));

HarnessOptions Tiny(AdmissionMode mode, int steps_in_flight) {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = 22, .page_size = 16, .max_rows = 16, .max_context_tokens = 320},
      steps_in_flight);
  options.engine.admission = mode;
  options.engine.prefill_chunk_tokens = 32;
  options.engine.max_step_tokens = 96;
  options.engine.max_step_prompt_tokens = 64;
  return options;
}

// Runs the request alone in a large pool, one step at a time.
Harness::Output RunAlone(const Request& request) {
  HarnessOptions options = Tiny(AdmissionMode::kSafe, 1);
  options.pool.usable_pages = 400;
  options.runner.num_blocks = 401;
  options.engine.max_step_tokens = 1000;
  options.engine.max_step_prompt_tokens = 1000;
  options.engine.prefill_chunk_tokens = 1000;
  Harness harness(options);
  harness.Submit(request);
  harness.RunUntilIdle();
  return harness.output(request.id);
}

void ExpectSameOutput(const Harness::Output& a, const Harness::Output& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.logprobs, b.logprobs);
  EXPECT_EQ(a.finish, b.finish);
  EXPECT_EQ(a.prompt_positions, b.prompt_positions);
  EXPECT_EQ(a.prompt_logprobs, b.prompt_logprobs);
}

TEST_P(EngineCoreTest, OutputDoesNotDependOnPoolOrNeighbours) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 6; ++round) {
    HarnessOptions options =
        Tiny(round % 3 == 0 ? AdmissionMode::kSafe : AdmissionMode::kOvercommit, GetParam());
    Harness harness(options);
    std::vector<Request> requests;
    for (int i = 0; i < 24; ++i) {
      const std::uint64_t family = random() % 6;
      std::vector<std::int32_t> prompt = MakePrompt(family, 8 + random() % 90);
      Request request =
          MakeRequest(absl::StrCat("r", i), prompt, 10 + static_cast<int>(random() % 120));
      if (i % 2 == 1) request.sampling.temperature = 1;
      request.sampling.seed = random();
      request.sampling.choice_count = i % 5 == 4 ? 3 : 1;
      if (request.sampling.choice_count > 1) request.stopping.max_tokens = 40;
      if (i % 3 == 0) request.sampling.repetition_penalty = 1.5f;
      request.output.logprobs = i % 4 - 1;
      if (i % 7 == 3) request.output.prompt_logprobs = 1;
      request.cache.skip_read = i % 11 == 5;
      request.cache.skip_write = i % 13 == 6;
      requests.push_back(request);
      harness.Submit(request);
    }
    harness.RunUntilIdle();
    if (options.engine.admission == AdmissionMode::kOvercommit) {
      EXPECT_GT(harness.probe.steps.preemptions(), 5) << "the pool was too large to test anything";
    } else {
      EXPECT_EQ(harness.probe.steps.preemptions(), 0);
    }
    for (const Request& request : requests) {
      SCOPED_TRACE(absl::StrCat("round ", round, ", request ", request.id));
      ASSERT_TRUE(harness.output(request.id).status.ok()) << harness.output(request.id).status;
      ExpectSameOutput(harness.output(request.id), RunAlone(request));
    }
    ExpectAllPagesBack(harness);
  }
}

TEST_P(EngineCoreTest, TokenCountsBalance) {
  HarnessOptions options = Tiny(AdmissionMode::kOvercommit, GetParam());
  Harness harness(options);
  std::int64_t tokens = 0, choices = 0;
  for (int i = 0; i < 20; ++i) {
    Request request =
        MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i % 4), 60), 80);
    request.sampling.choice_count = 1 + i % 2;
    harness.Submit(std::move(request));
  }
  harness.RunUntilIdle();
  for (int i = 0; i < 20; ++i) {
    for (const auto& [choice, ids] : harness.output(absl::StrCat("r", i)).tokens) {
      tokens += static_cast<std::int64_t>(ids.size());
      ++choices;
    }
  }
  const double computed = MetricValue(
      harness.registry, "quire_prompt_tokens_total{model_name=\"m\",source=\"compute\"}");
  const double cached = MetricValue(
      harness.registry, "quire_prompt_tokens_total{model_name=\"m\",source=\"device\"}");
  const double recomputed = MetricSum(harness.registry, "quire_recomputed_tokens_total");
  EXPECT_EQ(computed + cached, 20 * 60);
  EXPECT_EQ(cached, MetricSum(harness.registry, "quire_prefix_cache_hits_tokens_total"));
  EXPECT_GT(cached, 0);
  EXPECT_GT(recomputed, 0);
  EXPECT_EQ(MetricSum(harness.registry, "quire_engine_step_tokens_sum"),
            computed + recomputed + static_cast<double>(tokens - choices) +
                MetricSum(harness.registry, "quire_discarded_tokens_total"));
}

TEST_P(EngineCoreTest, ChoicesShareOnePrefill) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  Request request = MakeRequest("n", MakePrompt(3, 20), 6);
  request.sampling.temperature = 1;
  request.sampling.choice_count = 4;
  harness.Submit(request);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.core.last_plan().prefills.size(), 1);
  harness.RunUntilIdle();
  const Harness::Output n = harness.output("n");
  EXPECT_EQ(n.tokens.size(), 4);
  EXPECT_NE(n.tokens.at(0), n.tokens.at(1));
  EXPECT_EQ(MetricSum(harness.registry, "quire_prompt_tokens_total"), 20);
  request.id = "one";
  request.sampling.choice_count = 1;
  EXPECT_EQ(RunAlone(request).tokens.at(0), n.tokens.at(0));
  ExpectAllPagesBack(harness);
}

// Brings a request into each state in which it can be ended, among other requests that continue.
struct Staged {
  std::unique_ptr<Harness> harness;
  std::shared_ptr<AcceptedRequest> victim;
};

Staged Stage(RequestState state, absl::Time deadline, int steps_in_flight) {
  HarnessOptions options = Tiny(AdmissionMode::kOvercommit, steps_in_flight);
  options.engine.slow_client_timeout = absl::Seconds(5);
  auto harness = std::make_unique<Harness>(options);
  auto long_request = [&](std::string id) {
    Request request = MakeRequest(std::move(id), MakePrompt(9, 80), 200);
    request.deadline = deadline;
    request.stopping.ignore_eos = true;
    return request;
  };
  Staged staged;
  if (state == RequestState::kPreparing) {
    staged.victim = harness->Arrive(long_request("victim"));
  } else if (state == RequestState::kQueued) {
    staged.victim = harness->Submit(long_request("victim"));
  } else if (state == RequestState::kPrefill) {
    staged.victim = harness->Submit(long_request("victim"));
    harness->Step();
  } else if (state == RequestState::kDecode || state == RequestState::kStalled) {
    staged.victim = harness->Submit(long_request("victim"));
    for (int i = 0; i < 6; ++i) harness->Step();
    if (state == RequestState::kStalled) {
      staged.victim->stream->Write(DeltaEvent{.index = 0,
                                              .text = {},
                                              .parsed = {},
                                              .token_ids = {},
                                              .logprobs = {},
                                              .num_tokens = options.engine.stream_queue_tokens,
                                              .usage = {}});
      harness->Step();
      harness->Settle();
    }
  } else {
    Request neighbour = MakeRequest("neighbour", MakePrompt(8, 80), 220);
    neighbour.stopping.ignore_eos = true;
    harness->Submit(std::move(neighbour));
    harness->Step();  // the neighbour is the older one, whatever the victim's deadline
    staged.victim = harness->Submit(long_request("victim"));
    for (int i = 0; i < 200 && staged.victim->progress.state.load() != RequestState::kPreempted;
         ++i) {
      harness->Step();
    }
  }
  staged.harness = std::move(harness);
  return staged;
}

const RequestState kStates[] = {RequestState::kPreparing, RequestState::kQueued,
                                RequestState::kPrefill,   RequestState::kDecode,
                                RequestState::kPreempted, RequestState::kStalled};

TEST_P(EngineCoreTest, EveryCancelEndsRequestsInEveryStateAtOnce) {
  for (const RequestState state : kStates) {
    for (int source = 0; source < kNumCancelSources; ++source) {
      SCOPED_TRACE(
          absl::StrCat("state ", std::string(RequestStateName(state)), ", source ", source));
      Staged staged = Stage(state, absl::InfiniteFuture(), GetParam());
      ASSERT_EQ(staged.victim->progress.state.load(), state);
      staged.harness->Cancel(staged.victim, static_cast<CancelSource>(source));
      EXPECT_EQ(staged.victim->progress.pages.load(), 0);
      const Harness::Output& output = staged.harness->output("victim");
      EXPECT_TRUE(output.ended);
      EXPECT_FALSE(output.status.ok());
      EXPECT_NE(ReasonOf(output.status), "");
      EXPECT_EQ(staged.harness->core.Stats(staged.harness->clock.Now())
                    .early_ends[static_cast<std::size_t>(state)][static_cast<std::size_t>(source)],
                1);
      if (state == RequestState::kPreparing) staged.harness->Prepare(staged.victim);
      staged.harness->RunUntilIdle();
      ExpectAllPagesBack(*staged.harness);
    }
  }
}

TEST_P(EngineCoreTest, DeadlineEndsRequestsInEveryState) {
  for (const RequestState state : kStates) {
    SCOPED_TRACE(std::string(RequestStateName(state)));
    const absl::Time deadline = testing::FakeClock().Now() + absl::Seconds(3);
    Staged staged = Stage(state, deadline, GetParam());
    ASSERT_EQ(staged.victim->progress.state.load(), state);
    EXPECT_LE(staged.harness->core.NextWake(), deadline);
    staged.harness->clock.Advance(absl::Seconds(3));
    staged.harness->Step();
    const Harness::Output& output = staged.harness->output("victim");
    EXPECT_TRUE(output.ended);
    EXPECT_EQ(output.status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(output.status), "TIMEOUT");
    if (state == RequestState::kPreparing) staged.harness->Prepare(staged.victim);
    staged.harness->RunUntilIdle();
    ExpectAllPagesBack(*staged.harness);
  }
}

TEST_P(EngineCoreTest, QueueTimeoutCountsOnlyUntilTheFirstStep) {
  HarnessOptions options = Tiny(AdmissionMode::kSafe, GetParam());
  options.engine.max_running_sequences = 1;
  Harness harness(options);
  for (const char* id : {"runs", "waits"}) {
    Request request = MakeRequest(id, MakePrompt(1, 10), 50);
    request.queue_timeout = absl::Seconds(2);
    harness.Submit(std::move(request));
  }
  harness.Step();
  harness.clock.Advance(absl::Seconds(10));
  harness.Step();
  EXPECT_EQ(ReasonOf(harness.output("waits").status), "QUEUE_TIMEOUT");
  EXPECT_EQ(harness.output("waits").status.code(), absl::StatusCode::kResourceExhausted);
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("runs").status.ok());
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, SlowReaderIsSkippedThenCancelled) {
  Staged staged = Stage(RequestState::kStalled, absl::InfiniteFuture(), GetParam());
  Harness& harness = *staged.harness;
  const std::int32_t pages = staged.victim->progress.pages.load();
  EXPECT_GT(pages, 0);
  const std::size_t tokens = harness.output("victim").tokens.at(0).size();
  EXPECT_FALSE(harness.Step());
  harness.clock.Advance(absl::Seconds(4));
  EXPECT_FALSE(harness.Step());
  EXPECT_EQ(staged.victim->progress.pages.load(), pages);
  EXPECT_EQ(harness.output("victim").tokens.at(0).size(), tokens);
  harness.clock.Advance(absl::Seconds(1));
  harness.Step();
  EXPECT_EQ(ReasonOf(harness.output("victim").status), "SLOW_CLIENT");
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, SlowReaderContinuesWhenItReads) {
  Staged staged = Stage(RequestState::kStalled, absl::InfiniteFuture(), GetParam());
  EXPECT_TRUE(staged.victim->stream->Take().has_value());
  staged.harness->RunUntilIdle();
  const Harness::Output& output = staged.harness->output("victim");
  EXPECT_TRUE(output.status.ok());
  EXPECT_EQ(output.tokens, RunAlone(staged.victim->request).tokens);
}

TEST_P(EngineCoreTest, MinTokensDelaysEndOfSequenceAndStopIds) {
  HarnessOptions options = Tiny(AdmissionMode::kSafe, GetParam());
  options.runner.end_token = kEosToken;
  options.runner.end_period = 2;
  for (const bool ignore : {false, true}) {
    Harness harness(options);
    for (int i = 0; i < 12; ++i) {
      Request request =
          MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i), 5), 40);
      request.stopping.min_tokens = i;
      request.stopping.ignore_eos = ignore;
      harness.Submit(std::move(request));
    }
    harness.RunUntilIdle();
    for (int i = 0; i < 12; ++i) {
      const Harness::Output& output = harness.output(absl::StrCat("r", i));
      const std::vector<std::int32_t>& tokens = output.tokens.at(0);
      EXPECT_EQ(output.finish.at(0), ignore ? FinishReason::kLength : FinishReason::kEos);
      if (ignore) continue;
      EXPECT_GT(static_cast<int>(tokens.size()), i);
      EXPECT_EQ(tokens.back(), kEosToken);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kEosToken), 1);
    }
  }
}

TEST_P(EngineCoreTest, StopTokenEndsTheChoice) {
  const Request plain = MakeRequest("a", MakePrompt(4, 12), 30);
  const std::vector<std::int32_t> tokens = RunAlone(plain).tokens.at(0);
  Request request = plain;
  request.stopping.stop_token_ids = {tokens[7]};
  const Harness::Output output = RunAlone(request);
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[7]) + 1;
  EXPECT_EQ(output.tokens.at(0), std::vector<std::int32_t>(tokens.begin(), first));
  EXPECT_EQ(output.finish.at(0), FinishReason::kStopToken);
}

TEST_P(EngineCoreTest, ContextBoundsTheOutput) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  harness.Submit(MakeRequest("full", MakePrompt(1, 310), 100));
  harness.Submit(MakeRequest("exact", MakePrompt(2, 310), 10));
  harness.Submit(MakeRequest("long", MakePrompt(3, 320), 10));
  Request truncated = MakeRequest("truncated", MakePrompt(3, 400), 20);
  truncated.truncate_prompt = true;
  const std::shared_ptr<AcceptedRequest> live = harness.Submit(std::move(truncated));
  EXPECT_EQ(live->progress.prompt_tokens.load(), 300);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("full").tokens.at(0).size(), 10);
  EXPECT_EQ(harness.output("full").finish.at(0), FinishReason::kContextFull);
  EXPECT_EQ(harness.output("exact").finish.at(0), FinishReason::kLength);
  EXPECT_EQ(ReasonOf(harness.output("long").status), "PROMPT_TOO_LONG");
  std::vector<std::int32_t> prompt = MakePrompt(3, 400);
  prompt.erase(prompt.begin(), prompt.end() - 300);
  EXPECT_EQ(harness.output("truncated").tokens, RunAlone(MakeRequest("t", prompt, 20)).tokens);
}

TEST_P(EngineCoreTest, PromptLogprobsCoverEveryPositionOnce) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  harness.Submit(MakeRequest("warm", MakePrompt(5, 50), 1));
  harness.RunUntilIdle();
  Request request = MakeRequest("logprobs", MakePrompt(5, 50), 4);
  request.output.prompt_logprobs = 2;
  harness.Submit(request);
  harness.Submit(MakeRequest("hit", MakePrompt(5, 50), 1));
  harness.RunUntilIdle();
  const Harness::Output& output = harness.output("logprobs");
  EXPECT_EQ(output.cached_tokens, 0);
  EXPECT_GE(harness.output("hit").cached_tokens, 48);
  ASSERT_EQ(output.prompt_positions.size(), 49);
  for (std::int32_t i = 0; i < 49; ++i) {
    EXPECT_EQ(output.prompt_positions[static_cast<std::size_t>(i)], i + 1);
  }
  EXPECT_EQ(output.prompt_logprobs, RunAlone(request).prompt_logprobs);
}

TEST_P(EngineCoreTest, NonFiniteLogitsEndOneRequestAndItsPagesDoNotMatch) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  std::vector<std::int32_t> poisoned = MakePrompt(1, 40);
  poisoned[20] = kPoisonToken;
  harness.Submit(MakeRequest("sick", poisoned, 10));
  const Request well = MakeRequest("well", MakePrompt(2, 40), 10);
  harness.Submit(well);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("sick").status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(harness.output("sick").status), "NON_FINITE_LOGITS");
  ExpectSameOutput(harness.output("well"), RunAlone(well));
  // The pages before the poisoned token do not match either.
  std::vector<std::int32_t> same_start(poisoned.begin(), poisoned.begin() + 18);
  harness.Submit(MakeRequest("after", same_start, 10));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("after").cached_tokens, 0);
  EXPECT_EQ(harness.output("after").tokens, RunAlone(MakeRequest("after", same_start, 10)).tokens);
  EXPECT_EQ(MetricSum(harness.registry, "quire_engine_non_finite_total"), 1);
  ExpectAllPagesBack(harness);
}

std::vector<std::int32_t> Join(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Runs the prompt with one output token and returns the number of cached prompt tokens.
std::int32_t CachedTokens(Harness& harness, const std::string& id,
                          const std::vector<std::int32_t>& prompt) {
  harness.Submit(MakeRequest(id, prompt, 1));
  harness.RunUntilIdle();
  return harness.output(id).cached_tokens;
}

TEST_P(EngineCoreTest, NonFiniteLogitsKeepASharedPromptInTheCache) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  const std::vector<std::int32_t> system = MakePrompt(1, 48);
  CachedTokens(harness, "well", Join(system, MakePrompt(2, 10)));
  // The first chunk publishes the page with the poisoned token. The last chunk reports the
  // non-finite logits.
  const std::vector<std::int32_t> sick = Join(Join(system, {kPoisonToken}), MakePrompt(3, 60));
  EXPECT_EQ(CachedTokens(harness, "sick", sick), 48);
  EXPECT_EQ(ReasonOf(harness.output("sick").status), "NON_FINITE_LOGITS");
  EXPECT_EQ(CachedTokens(harness, "as sick", sick), 48) << "the poisoned page does not match";
  const std::vector<std::int32_t> next = Join(system, MakePrompt(4, 10));
  EXPECT_EQ(CachedTokens(harness, "next", next), 48);
  EXPECT_EQ(harness.output("next").tokens, RunAlone(MakeRequest("next", next, 1)).tokens);
  ExpectAllPagesBack(harness);
}

// The matched pages were proven only after the admission, by the request that has computed them.
TEST_P(EngineCoreTest, NonFiniteLogitsKeepAPromptProvenAfterTheAdmission) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  const std::vector<std::int32_t> system = MakePrompt(1, 64);
  harness.Submit(MakeRequest("well", Join(system, MakePrompt(2, 5)), 1));
  harness.Step();
  harness.Settle();  // 32 of its tokens are computed and published
  const std::vector<std::int32_t> sick = Join(Join(system, {kPoisonToken}), MakePrompt(3, 100));
  harness.Submit(MakeRequest("sick", sick, 1));
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("well").status.ok());
  EXPECT_EQ(harness.output("sick").cached_tokens, 32);
  EXPECT_EQ(ReasonOf(harness.output("sick").status), "NON_FINITE_LOGITS");
  EXPECT_GE(CachedTokens(harness, "next", Join(system, MakePrompt(4, 10))), 32);
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, BrokenInvariantIsReportedWithItsClass) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  EXPECT_TRUE(harness.core.CheckIntegrity().failures.empty());
  harness.cache->PrepareStep({});  // the core does not know this step
  const IntegrityReport report = harness.core.CheckIntegrity();
  ASSERT_EQ(report.failures.size(), 1);
  EXPECT_EQ(report.failures[0], "StepPipeline: 0 steps are in flight, but the cache counts 1");
  EXPECT_EQ(report.num_checks, 7);
  EXPECT_EQ(report.status().message(), report.failures[0]);
}

// The next request matches the published chunk and gets non-finite logits. After that the chunk no
// longer matches, and the pages proven before it still do.
TEST_P(EngineCoreTest, PoisonedChunkOfACancelledRequestMatchesAtMostOnce) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  const std::vector<std::int32_t> system = MakePrompt(1, 48);
  CachedTokens(harness, "well", Join(system, MakePrompt(2, 10)));
  const std::vector<std::int32_t> sick = Join(Join(system, {kPoisonToken}), MakePrompt(3, 100));
  const auto cancelled = harness.Submit(MakeRequest("cancelled", sick, 1));
  harness.Step();
  harness.Step();
  harness.Settle();
  harness.Cancel(cancelled, CancelSource::kApi);
  EXPECT_EQ(ReasonOf(harness.output("cancelled").status), "CANCELLED_BY_CALLER");
  EXPECT_GT(CachedTokens(harness, "first", sick), 48) << "a cancelled request leaves its pages";
  EXPECT_EQ(ReasonOf(harness.output("first").status), "NON_FINITE_LOGITS");
  EXPECT_EQ(CachedTokens(harness, "second", sick), 48) << "the poisoned pages do not match again";
  EXPECT_EQ(CachedTokens(harness, "next", Join(system, MakePrompt(4, 10))), 48);
  EXPECT_TRUE(harness.output("next").status.ok());
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, NonFiniteLogitsInDecodingInvalidateThePagesOfTheStep) {
  HarnessOptions options = Tiny(AdmissionMode::kSafe, GetParam());
  options.runner.end_token = kEosToken;
  options.runner.poison_token = kEosToken;  // computing the end token gives NaN
  options.runner.end_period = 1;
  Harness harness(options);
  const std::vector<std::int32_t> prompt = MakePrompt(1, 70);
  Request sick = MakeRequest("sick", prompt, 20);
  sick.stopping.ignore_eos = true;
  sick.sampling.choice_count = 2;
  harness.Submit(sick);
  harness.RunUntilIdle();
  EXPECT_EQ(ReasonOf(harness.output("sick").status), "NON_FINITE_LOGITS");
  // The step also wrote the page of the last prompt tokens.
  EXPECT_EQ(CachedTokens(harness, "after", prompt), 64);
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, WholePoolIsCleanedAfterNonFiniteLogits) {
  // The poisoned request owns every page. The next request needs all of them, and only an empty
  // step can clear them.
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  std::vector<std::int32_t> poisoned = MakePrompt(1, 310);
  poisoned[309] = kPoisonToken;
  harness.Submit(MakeRequest("sick", poisoned, 10));
  const Request next = MakeRequest("next", MakePrompt(2, 310), 10);
  harness.Submit(next);
  harness.RunUntilIdle();
  EXPECT_FALSE(harness.output("sick").status.ok());
  ExpectSameOutput(harness.output("next"), RunAlone(next));
}

TEST_P(EngineCoreTest, BlockedHeadOfTheQueueRetriesOnlyAfterTheCacheHasChanged) {
  Harness harness(Tiny(AdmissionMode::kOvercommit, GetParam()));
  const Request first = MakeRequest("first", MakePrompt(1, 200), 110);
  const Request second = MakeRequest("second", MakePrompt(2, 200), 5);
  harness.Submit(first);
  while (harness.output("first").tokens.empty()) harness.Step();
  harness.Submit(second);
  harness.RunUntilIdle();
  const EngineStats stats = harness.core.Stats(harness.clock.Now());
  EXPECT_GT(stats.steps, 110);
  EXPECT_GE(stats.blocked_admissions, 1);
  // The first request fills and publishes 7 pages while it decodes 110 tokens.
  EXPECT_LE(stats.blocked_admissions, 16);
  ExpectSameOutput(harness.output("first"), RunAlone(first));
  ExpectSameOutput(harness.output("second"), RunAlone(second));
}

TEST_P(EngineCoreTest, TimeOfTheLastStepIsReportedInWallClockTime) {
  Harness harness(Tiny(AdmissionMode::kSafe, GetParam()));
  harness.clock.SetWallJump(absl::Hours(48));
  harness.Submit(MakeRequest("a", MakePrompt(1, 20), 2));
  harness.RunUntilIdle();
  EXPECT_EQ(MetricSum(harness.registry, "quire_engine_last_step_timestamp_seconds"),
            absl::ToDoubleSeconds(harness.clock.WallNow() - absl::UnixEpoch()));
}

TEST_P(EngineCoreTest, FailedStepEndsOnlyItsRequests) {
  HarnessOptions options = Tiny(AdmissionMode::kSafe, GetParam());
  options.engine.max_running_sequences = 2;
  Harness harness(options);
  int runs = 0;
  harness.runner.SetHook([&](const runtime::StepBatch&) {
    return ++runs == 6 ? absl::InternalError("the device is on fire") : absl::OkStatus();
  });
  for (int i = 0; i < 4; ++i) {
    harness.Submit(MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i), 20), 20));
  }
  harness.RunUntilIdle();
  for (const char* id : {"r0", "r1"}) {
    EXPECT_EQ(harness.output(id).status.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(ReasonOf(harness.output(id).status), "ENGINE_ERROR");
  }
  for (const char* id : {"r2", "r3"}) {
    EXPECT_TRUE(harness.output(id).status.ok());
    EXPECT_EQ(harness.output(id).tokens.at(0).size(), 20);
  }
  ExpectAllPagesBack(harness);
}

TEST(AdmissionLimiterTest, QueueLimitsRejectWithNumbers) {
  AdmissionLimiter limiter(2, 100);
  EXPECT_TRUE(limiter.EnterRequest("t", {}).ok());
  EXPECT_TRUE(limiter.EnterRequest("t", {}).ok());
  const absl::Status full = limiter.EnterRequest("t", {});
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_EQ(GetErrorReason(full)->Find("limit"), "2");
  EXPECT_EQ(GetErrorReason(full)->retry_delay, absl::Seconds(10));
  EXPECT_TRUE(limiter.AddTokens("t", 90).ok());
  EXPECT_EQ(ReasonOf(limiter.AddTokens("t", 11)), "QUEUE_FULL");
  limiter.Update({.prompt_tokens = 500, .prompt_tokens_per_second = 200});
  EXPECT_EQ(limiter.RetryDelay(), absl::Milliseconds(2500));
  limiter.Update({.prompt_tokens = 500,
                  .output_tokens = 300,
                  .prompt_tokens_per_second = 200,
                  .output_tokens_per_second = 20});
  EXPECT_EQ(limiter.RetryDelay(), absl::Seconds(15));
  limiter.Update({.output_tokens = 300, .prompt_tokens_per_second = 100});
  EXPECT_EQ(limiter.RetryDelay(), absl::Seconds(3)) << "no output in the window";
  limiter.Update({.prompt_tokens = 1, .prompt_tokens_per_second = 100});
  EXPECT_EQ(limiter.RetryDelay(), absl::Seconds(1)) << "never at once";
  limiter.LeaveRequest("t");
  limiter.RemoveTokens("t", 90);
  EXPECT_TRUE(limiter.EnterRequest("t", {}).ok());
  EXPECT_TRUE(limiter.AddTokens("t", 100).ok());
}

// Prompts have three tokens and outputs 300, so nearly all of the time is spent on decoding.
TEST(AdmissionLimiterTest, RetryDelayCountsDecodedAndRemainingTokens) {
  HarnessOptions options = MakeHarnessOptions({.usable_pages = 200, .max_rows = 4});
  Harness harness(options);
  for (int i = 0; i < 8; ++i) {
    Request request = MakeRequest(absl::StrCat("r", i), {1, 2, 3}, 300);
    request.stopping.ignore_eos = true;
    harness.Submit(std::move(request));
  }
  // 4 rows at 10 steps per second are 40 tokens per second, for 8 outputs of 300 tokens.
  for (int i = 0; i < 100; ++i) {
    harness.Step();
    harness.clock.Advance(absl::Milliseconds(100));
  }
  EXPECT_GT(harness.limiter.RetryDelay(), absl::Seconds(40));
  EXPECT_LT(harness.limiter.RetryDelay(), absl::Seconds(60));
  for (int i = 0; i < 300; ++i) {
    harness.Step();
    harness.clock.Advance(absl::Milliseconds(100));
  }
  // The second four requests have 200 tokens each left.
  EXPECT_GT(harness.limiter.RetryDelay(), absl::Seconds(15));
  EXPECT_LT(harness.limiter.RetryDelay(), absl::Seconds(25));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.limiter.RetryDelay(), absl::Seconds(1)) << "never at once";
}

TEST(AdmissionLimiterTest, RateIsTheMeanOfTheLastTenSeconds) {
  RateMeter meter;
  absl::Time now = absl::FromUnixSeconds(100);
  EXPECT_EQ(meter.PerSecond(now), 0);
  for (int i = 0; i < 30; ++i) {
    meter.Add(now, 50);
    now += absl::Seconds(1);
  }
  EXPECT_DOUBLE_EQ(meter.PerSecond(now - absl::Seconds(1)), 50);
  EXPECT_EQ(meter.PerSecond(now + absl::Seconds(20)), 0);
}

// Runs a second turn of a conversation: the first prompt, its output, and new tokens.
TEST_P(EngineCoreTest, StrictRowClassesKeepGeneratedPagesFromPrompts) {
  for (const bool strict : {false, true}) {
    HarnessOptions options = Tiny(AdmissionMode::kSafe, GetParam());
    options.engine.share_generated_pages = !strict;
    Harness harness(options);
    Request first = MakeRequest("first", MakePrompt(1, 40), 60);
    first.stopping.ignore_eos = true;
    harness.Submit(first);
    harness.RunUntilIdle();
    std::vector<std::int32_t> turn = MakePrompt(1, 40);
    const std::vector<std::int32_t>& answer = harness.output("first").tokens.at(0);
    turn.insert(turn.end(), answer.begin(), answer.end());
    turn.push_back(7);
    for (const char* id : {"second", "third"}) {
      harness.Submit(MakeRequest(id, turn, 5));
      harness.RunUntilIdle();
    }
    // The last output token has no K and V. With row classes the match ends with the prompt.
    EXPECT_EQ(harness.output("second").cached_tokens, strict ? 40 : 99);
    EXPECT_EQ(harness.output("third").cached_tokens, 100) << "prefill tokens are found by prompts";
    EXPECT_EQ(harness.output("second").tokens, RunAlone(MakeRequest("s", turn, 5)).tokens);
    EXPECT_EQ(harness.output("third").tokens, harness.output("second").tokens);
  }
}

TEST_P(EngineCoreTest, StrictRowClassesLetPreemptedSequencesMatchTheirOwnPages) {
  HarnessOptions options = Tiny(AdmissionMode::kOvercommit, GetParam());
  options.engine.share_generated_pages = false;
  Harness harness(options);
  std::uint32_t resumed = 0;
  harness.runner.SetHook([&](const runtime::StepBatch& batch) {
    for (const runtime::StepRow& row : batch.rows) {
      // Several new tokens after cached generated tokens belong to a resumed sequence.
      resumed += row.cache_length > 40 && row.num_tokens > 1;
    }
    return absl::OkStatus();
  });
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(
        MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i), 40), 120));
    requests.back().sampling.choice_count = 1 + i % 2;
    harness.Submit(requests.back());
  }
  harness.RunUntilIdle();
  EXPECT_GT(harness.probe.steps.preemptions(), 5);
  EXPECT_GT(resumed, 0);
  for (const Request& request : requests) {
    ExpectSameOutput(harness.output(request.id), RunAlone(request));
  }
  ExpectAllPagesBack(harness);
}

TEST_P(EngineCoreTest, RandomRunKeepsEveryInvariant) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 4; ++round) {
    Harness harness(
        Tiny(round % 2 == 0 ? AdmissionMode::kOvercommit : AdmissionMode::kSafe, GetParam()));
    harness.runner.SetHook([&](const runtime::StepBatch&) {
      return random() % 200 == 0 ? absl::InternalError("random failure") : absl::OkStatus();
    });
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    for (int i = 0; i < 400; ++i) {
      if (random() % 3 == 0) {
        std::vector<std::int32_t> prompt = MakePrompt(random() % 5, 1 + random() % 120);
        if (random() % 20 == 0) prompt[random() % prompt.size()] = kPoisonToken;
        Request request =
            MakeRequest(absl::StrCat("r", i), prompt, 1 + static_cast<int>(random() % 60));
        request.sampling.choice_count = 1 + static_cast<int>(random() % 3);
        request.output.prompt_logprobs = static_cast<int>(random() % 4) - 2 < 0 ? -1 : 1;
        request.deadline = harness.clock.Now() + absl::Seconds(1 + static_cast<int>(random() % 60));
        live.push_back(harness.Submit(std::move(request)));
      }
      if (!live.empty() && random() % 10 == 0) {
        harness.Cancel(live[random() % live.size()], CancelSource::kApi);
      }
      harness.clock.Advance(absl::Milliseconds(static_cast<int>(random() % 500)));
      harness.Step();
    }
    harness.RunUntilIdle();
    // Poisoned pages are cleared by the next step, if there is one.
    harness.Submit(MakeRequest("last", MakePrompt(9, 5), 1));
    harness.RunUntilIdle();
    ExpectAllPagesBack(harness);
  }
}

}  // namespace
}  // namespace quire::engine
