// Models with recurrent layers. The tokens of every sequence equal those of the same request that
// runs alone without a cache, whatever is hit, forked, preempted, chunked or cancelled.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "engine/engine.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

constexpr std::uint32_t kPage = 16;

struct Setting {
  std::uint32_t usable_pages = 200;
  std::uint32_t snapshots = 8;
  std::int32_t chunk = 512;
  AdmissionMode mode = AdmissionMode::kSafe;
  std::uint32_t max_rows = 8;
};

HarnessOptions OptionsFor(const Setting& setting) {
  HarnessOptions options = MakeHarnessOptions({.usable_pages = setting.usable_pages,
                                               .page_size = kPage,
                                               .max_rows = setting.max_rows,
                                               .snapshots = setting.snapshots,
                                               .state_interval_tokens = 8 * kPage});
  options.engine.prefill_chunk_tokens = setting.chunk;
  options.engine.admission = setting.mode;
  return options;
}

Request Plain(const std::string& id, Tokens prompt, std::int32_t max_tokens = 20) {
  Request request = MakeRequest(id, std::move(prompt), max_tokens);
  request.stopping.ignore_eos = true;
  return request;
}

// Returns the tokens of a request that runs alone on an empty cache.
std::map<std::int32_t, Tokens> Alone(Request request) {
  Harness calm(OptionsFor({.usable_pages = 1000}));
  request.id = "alone";
  request.cache = {};
  calm.Submit(std::move(request));
  calm.RunUntilIdle();
  EXPECT_TRUE(calm.output("alone").status.ok()) << calm.output("alone").status;
  return calm.output("alone").tokens;
}

// Runs the request to its end, compares its tokens and returns its cached tokens.
std::int32_t RunAndCompare(Harness* harness, const Request& request) {
  harness->Submit(request);
  harness->RunUntilIdle();
  EXPECT_TRUE(harness->output(request.id).status.ok()) << harness->output(request.id).status;
  EXPECT_EQ(harness->output(request.id).tokens, Alone(request)) << request.id;
  return harness->output(request.id).cached_tokens;
}

TEST(RecurrentTest, StatesChangeTheTokens) {
  HarnessOptions options = OptionsFor({});
  options.pool.snapshots = options.runner.num_state_slots = 0;
  Harness without(options);
  const Request request = Plain("a", MakePrompt(1, 50));
  without.Submit(request);
  without.RunUntilIdle();
  EXPECT_NE(without.output("a").tokens, Alone(request));
}

TEST(RecurrentTest, ChunksAndHitsChangeNoToken) {
  for (const std::int32_t chunk : {16, 48, 512}) {
    Harness harness(OptionsFor({.chunk = chunk}));
    for (const std::size_t size :
         {std::size_t{63}, std::size_t{64}, std::size_t{65}, std::size_t{200}}) {
      const Tokens prompt = MakePrompt(size, size);
      const auto last = static_cast<std::int32_t>((size - 1 - 16) / kPage * kPage);
      EXPECT_EQ(RunAndCompare(&harness, Plain(absl::StrCat("cold", size), prompt)), 0);
      EXPECT_EQ(RunAndCompare(&harness, Plain(absl::StrCat("again", size), prompt)), last);
    }
  }
}

TEST(RecurrentTest, AConversationContinuesWhereItsLastTurnEnded) {
  Harness harness(OptionsFor({}));
  Tokens prompt = MakePrompt(3, 70);
  for (std::uint64_t turn = 0; turn < 5; ++turn) {
    const Request request = Plain(absl::StrCat("turn", turn), prompt);
    const std::int32_t cached = RunAndCompare(&harness, request);
    // The last token of the answer was sampled and not computed.
    if (turn > 0) {
      EXPECT_EQ(cached, static_cast<std::int32_t>(prompt.size()) - 7 - 1);
    }
    const Tokens answer = harness.output(request.id).tokens.at(0);
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    for (const std::int32_t token : MakePrompt(100 + turn, 7)) prompt.push_back(token);
  }
  EXPECT_EQ(MetricSum(harness.registry, "quire_prefix_cache_stateless_tokens_total"), 0);
}

TEST(RecurrentTest, TheThirdPromptWithASharedHeadStartsBehindIt) {
  Harness harness(OptionsFor({}));
  const Tokens head = MakePrompt(4, 5 * kPage);
  std::vector<std::int32_t> cached;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Tokens prompt = head;
    for (const std::int32_t token : MakePrompt(10 + i, 60)) prompt.push_back(token);
    cached.push_back(RunAndCompare(&harness, Plain(absl::StrCat("r", i), prompt)));
  }
  EXPECT_THAT(cached, ::testing::ElementsAre(0, 0, 5 * kPage));
  EXPECT_EQ(MetricSum(harness.registry, "quire_prefix_cache_stateless_tokens_total"), 5 * kPage);
  EXPECT_GT(
      MetricValue(harness.registry, "quire_kv_state_slots{model_name=\"m\",state=\"snapshot\"}"),
      2);
}

// One step would leave only the snapshot at the end of the head.
TEST(RecurrentTest, APromptThatLeavesASharedHeadAlsoLeavesItsLastSnapshot) {
  Harness harness(OptionsFor({}));
  Tokens prompt;
  for (std::uint64_t i = 0; i < 2; ++i) {
    prompt = MakePrompt(4, 5 * kPage);
    for (const std::int32_t token : MakePrompt(10 + i, 60)) prompt.push_back(token);
    EXPECT_EQ(RunAndCompare(&harness, Plain(absl::StrCat("r", i), prompt)), 0);
  }
  EXPECT_EQ(RunAndCompare(&harness, Plain("again", prompt)), 7 * kPage);
}

TEST(RecurrentTest, ChoicesContinueTheStateOfTheirPrompt) {
  for (const AdmissionMode mode : {AdmissionMode::kSafe, AdmissionMode::kOvercommit}) {
    for (const std::size_t size : {std::size_t{64}, std::size_t{70}}) {
      Harness harness(OptionsFor({.snapshots = 2, .mode = mode}));
      for (std::int32_t choices = 1; choices <= 8; ++choices) {
        Request request = Plain(absl::StrCat("n", choices), MakePrompt(size, size));
        request.sampling.choice_count = choices;
        request.sampling.temperature = 1;
        request.sampling.seed = 5;
        RunAndCompare(&harness, request);
      }
    }
  }
}

// Pools of different sizes preempt at different steps.
TEST(RecurrentTest, PreemptedSequencesGoOnAsIfNothingHadHappened) {
  std::vector<Request> requests;
  std::vector<std::map<std::int32_t, Tokens>> expected;
  for (std::uint64_t i = 0; i < 6; ++i) {
    requests.push_back(Plain(absl::StrCat("r", i), MakePrompt(20 + i, 40 + 3 * i), 60));
    expected.push_back(Alone(requests.back()));
  }
  std::int64_t preemptions = 0;
  for (std::uint32_t pages = 8; pages < 40; ++pages) {
    for (const std::uint32_t snapshots : {2u, 20u}) {
      Harness harness(OptionsFor({.usable_pages = pages,
                                  .snapshots = snapshots,
                                  .chunk = 16 * static_cast<std::int32_t>(1 + pages % 3),
                                  .mode = AdmissionMode::kOvercommit}));
      for (const Request& request : requests) harness.Submit(request);
      harness.RunUntilIdle();
      for (std::size_t i = 0; i < requests.size(); ++i) {
        ASSERT_EQ(harness.output(requests[i].id).tokens, expected[i]) << pages << " pages";
      }
      preemptions += harness.core.Stats(harness.clock.Now()).preemptions;
    }
  }
  EXPECT_GT(preemptions, 50);
}

TEST(RecurrentTest, APoisonedSequenceLeavesNoStateBehind) {
  Harness harness(OptionsFor({.chunk = 32}));
  const Tokens head = MakePrompt(5, 6 * kPage);
  Tokens poisoned = head;
  poisoned[40] = kPoisonToken;
  harness.Submit(Plain("bad", poisoned));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("bad").status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(RunAndCompare(&harness, Plain("good", head)), 0);
  harness.Submit(Plain("worse", poisoned));
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("worse").status.code(), absl::StatusCode::kDataLoss);
  EXPECT_GT(RunAndCompare(&harness, Plain("better", head)), 0);
}

TEST(RecurrentTest, FlushForgetsEveryState) {
  Harness harness(OptionsFor({}));
  const Tokens prompt = MakePrompt(6, 100);
  RunAndCompare(&harness, Plain("a", prompt));
  harness.core.FlushCache();
  EXPECT_EQ(harness.cache->stats().snapshot_state_slots, 0u);
  EXPECT_EQ(RunAndCompare(&harness, Plain("b", prompt)), 0);
}

TEST(RecurrentTest, RefusesToDiscardSteps) {
  HarnessOptions options = OptionsFor({});
  options.runner.max_steps_in_flight = 2;
  FakeRunner runner(options.runner);
  const auto tokenizer = MakeByteTokenizer();
  testing::FakeClock clock;
  probe::Registry registry;
  const auto engine = Engine::Create(options.engine, MakeCache(options.pool), &runner,
                                     tokenizer.get(), &clock, &registry);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(engine.status().message(), HasSubstr("max_steps_in_flight is 2, it must be 1"));
}

// Random requests that share heads, with choices, cancellations, chunks and few pages and slots.
TEST(RecurrentTest, RandomTrafficEqualsColdRuns) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  std::int64_t preemptions = 0;
  double hits = 0, lost = 0;
  for (int round = 0; round < 12; ++round) {
    const bool overcommit = round % 2 == 0;
    Harness harness(
        OptionsFor({.usable_pages = overcommit ? 40 : 60u,
                    .snapshots = 2 + below(6),
                    .chunk = static_cast<std::int32_t>(16 * (1 + below(6))),
                    .mode = overcommit ? AdmissionMode::kOvercommit : AdmissionMode::kSafe}));
    std::vector<Request> requests;
    std::vector<Request> cancelled;
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    for (int i = 0; i < 25; ++i) {
      Tokens prompt = MakePrompt(below(3), 10 + below(120));
      for (const std::int32_t token : MakePrompt(50 + below(3), below(50))) prompt.push_back(token);
      Request request =
          Plain(absl::StrCat("r", i), prompt, 1 + static_cast<std::int32_t>(below(90)));
      request.sampling.choice_count = below(4) == 0 ? 1 + static_cast<std::int32_t>(below(3)) : 1;
      request.sampling.temperature = below(2) == 0 ? 0 : 1;
      request.sampling.seed = static_cast<std::uint64_t>(i);
      const auto accepted = harness.Submit(request);
      if (below(5) == 0) {
        live.push_back(accepted);
      } else {
        requests.push_back(request);
      }
      for (std::uint32_t steps = below(8); steps > 0; --steps) harness.Step();
      if (!live.empty() && below(3) == 0) {
        harness.Cancel(live.back(), CancelSource::kClient);
        live.pop_back();
      }
    }
    harness.RunUntilIdle();
    for (const Request& request : requests) {
      ASSERT_TRUE(harness.output(request.id).status.ok()) << harness.output(request.id).status;
      ASSERT_EQ(harness.output(request.id).tokens, Alone(request)) << request.id;
    }
    preemptions += harness.core.Stats(harness.clock.Now()).preemptions;
    hits += MetricSum(harness.registry, "quire_prefix_cache_hits_tokens_total");
    lost += MetricSum(harness.registry, "quire_prefix_cache_stateless_tokens_total");
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(hits, 1000);
  EXPECT_GT(lost, 100);
}

}  // namespace
}  // namespace quire::engine
