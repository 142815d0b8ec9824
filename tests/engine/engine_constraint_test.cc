// Constrained choices in the engine. Answers depend on the constraint only, and a late mask delays
// only its own row.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/mutex.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/engine.h"
#include "engine/masks/banned_text.h"
#include "engine/masks/mask_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/constraint/table_constraint.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"

namespace quire::engine {
namespace {

using quire::testing::WaitUntil;
using ::testing::Contains;
using ::testing::ElementsAre;
using Answers = std::vector<std::vector<std::int32_t>>;

// Calls a function before each mask, and fails from a given number of tokens on.
struct MatcherHooks {
  std::function<void(std::uint32_t accepted)> before_mask = [](std::uint32_t) {};
  std::uint32_t fails_at = ~0u;
};

class HookedMatcher final : public ConstraintMatcher {
 public:
  HookedMatcher(std::unique_ptr<ConstraintMatcher> inner, const MatcherHooks& hooks)
      : inner_(std::move(inner)), hooks_(hooks) {}
  absl::Status Accept(std::int32_t token) override {
    if (num_accepted() + 1 >= hooks_.fails_at) {
      return WithReason(absl::ResourceExhaustedError("the state is too large"),
                        Reason::kBadConstraint, {{"stage", "limit"}});
    }
    return inner_->Accept(token);
  }
  absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) override {
    hooks_.before_mask(num_accepted());
    return inner_->FillMask(words);
  }
  std::uint32_t num_accepted() const override { return inner_->num_accepted(); }
  std::unique_ptr<ConstraintMatcher> Fork() const override {
    return std::make_unique<HookedMatcher>(inner_->Fork(), hooks_);
  }
  absl::Status CheckIntegrity() const override { return inner_->CheckIntegrity(); }

 private:
  const std::unique_ptr<ConstraintMatcher> inner_;
  const MatcherHooks& hooks_;
};

class HookedConstraint final : public CompiledConstraint {
 public:
  HookedConstraint(Answers answers, MatcherHooks hooks)
      : table_(MakeTableConstraint(kByteVocab, std::move(answers))), hooks_(std::move(hooks)) {}
  std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const override {
    return std::make_unique<HookedMatcher>(table_->NewMatcher(end_tokens), hooks_);
  }
  std::uint32_t vocab_size() const override { return kByteVocab; }
  std::int64_t MemoryBytes() const override { return 1; }

 private:
  const std::shared_ptr<const CompiledConstraint> table_;
  const MatcherHooks hooks_;
};

std::vector<std::int32_t> Bytes(absl::string_view text) {
  return {text.begin(), text.end()};
}

// Answers with common prefixes, some of which continue others. The result is a function of the
// seed.
Answers RandomAnswers(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Answers answers;
  const auto count = 1 + random() % 6;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::vector<std::int32_t> answer;
    if (!answers.empty() && random() % 2 == 0) answer = answers[random() % answers.size()];
    if (!answer.empty() && random() % 2 == 0) answer.resize(1 + random() % answer.size());
    const auto added = 1 + random() % 25;
    for (std::uint64_t k = 0; k < added; ++k) {
      answer.push_back(static_cast<std::int32_t>('a' + random() % 4));
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

ConstraintSpec Table(std::uint64_t seed) {
  ConstraintSpec spec;
  spec.text = absl::StrCat(seed);
  return spec;
}

std::uint64_t SeedOf(const ConstraintSpec& spec) {
  std::uint64_t seed = 0;
  EXPECT_TRUE(absl::SimpleAtoi(spec.text, &seed));
  return seed;
}

HarnessOptions Small(int steps_in_flight, std::uint32_t usable_pages = 40) {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = usable_pages, .page_size = 16, .max_rows = 12, .max_context_tokens = 320},
      steps_in_flight);
  options.engine.prefill_chunk_tokens = 32;
  options.engine.max_step_tokens = 96;
  options.engine.max_step_prompt_tokens = 64;
  options.engine.mask_threads = 6;
  options.runner.end_token = kEosToken;
  options.runner.end_period = 6;
  return options;
}

HarnessOptions WithStates(std::uint32_t usable_pages = 40) {
  HarnessOptions options = Small(/*steps_in_flight=*/1, usable_pages);
  options.pool.snapshots = 8;
  options.runner.num_state_slots = options.pool.num_state_slots();
  return options;
}

// Requests with prompts, choices, penalties and limits of all kinds. Two thirds of them are
// constrained.
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
    if (i % 4 == 2) request.sampling.dry = {.multiplier = 1, .allowed_length = 1};
    if (i % 8 == 6) request.sampling.logit_bias = {{'a', 1.0f}, {'c', 0.5f}};
    if (i % 4 == 1) request.stopping.min_tokens = static_cast<int>(random() % 20);
    if (i % 7 == 3) request.output.prompt_logprobs = 1;
    request.output.logprobs = i % 3 - 1;
    if (i % 3 != 0) request.constraint = Table(random() % 50);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Blocks mask threads until the engine has made a number of steps without them.
class Turnstile {
 public:
  void Pass() {
    MutexLock lock(&mutex_);
    const std::int64_t leaves_at = steps_ + 2;
    while (steps_ < leaves_at && !is_open_) changed_.Wait(&mutex_);
  }
  void Step() {
    MutexLock lock(&mutex_);
    ++steps_;
    changed_.NotifyAll();
  }
  void Open() {
    MutexLock lock(&mutex_);
    is_open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
};

// A harness in which some masks are late.
struct LateHarness {
  explicit LateHarness(const HarnessOptions& options) : harness(options) {
    harness.compile = [this](const ConstraintSpec& spec) {
      MatcherHooks hooks;
      hooks.before_mask = [this, seed = SeedOf(spec)](std::uint32_t accepted) {
        if ((seed * 7 + accepted) % 11 == 0) turnstile.Pass();
      };
      return std::make_shared<HookedConstraint>(RandomAnswers(SeedOf(spec)), hooks);
    };
  }
  ~LateHarness() { turnstile.Open(); }

  bool Step() {
    const bool ran = harness.Step();
    turnstile.Step();
    return ran;
  }
  void RunUntilIdle() {
    while (!harness.core.idle()) ASSERT_TRUE(Step());
    harness.Settle();
  }

  Turnstile turnstile;
  Harness harness;
};

// A harness whose constraints have one answer. The mask after a number of tokens waits at a gate.
struct HeldHarness {
  HeldHarness(int in_flight, absl::string_view answer, std::uint32_t held_after)
      : HeldHarness(Small(in_flight), answer, held_after) {}
  HeldHarness(HarnessOptions options, absl::string_view answer, std::uint32_t held_after)
      : harness(WithoutEnds(std::move(options))) {
    gate.Set(true);
    MatcherHooks hooks;
    hooks.before_mask = [this, held_after](std::uint32_t accepted) {
      if (accepted == held_after) gate.Pass();
    };
    harness.compile = [hooks, answers = Answers{Bytes(answer)}](const ConstraintSpec&) {
      return std::make_shared<HookedConstraint>(answers, hooks);
    };
  }
  ~HeldHarness() { gate.Set(false); }

  static HarnessOptions WithoutEnds(HarnessOptions options) {
    options.runner.end_period = 0;
    return options;
  }

  Gate gate;
  Harness harness;
};

void ExpectInLanguage(const Request& request, const Harness::Output& output) {
  const Answers answers = RandomAnswers(SeedOf(*request.constraint));
  for (const auto& [choice, tokens] : output.tokens) {
    std::vector<std::int32_t> text = tokens;
    const FinishReason finish = output.finish.at(choice);
    if (finish == FinishReason::kEos) text.pop_back();
    if (finish == FinishReason::kLength) {
      EXPECT_TRUE(std::ranges::any_of(answers, [&](const auto& answer) {
        return text.size() <= answer.size() && std::equal(text.begin(), text.end(), answer.begin());
      }));
      continue;
    }
    EXPECT_THAT(answers, Contains(text));
    const bool continues = std::ranges::any_of(answers, [&](const auto& answer) {
      return text.size() < answer.size() && std::equal(text.begin(), text.end(), answer.begin());
    });
    EXPECT_EQ(finish, continues ? FinishReason::kEos : FinishReason::kConstraintDone);
  }
}

double MasksLate(const Harness& harness) {
  return MetricValue(harness.registry,
                     "quire_constraint_masks_total{model_name=\"m\",result=\"late\"}");
}

// QUIRE_CONSTRAINT_ROUNDS (default 8) sets the number of rounds. The model of every fourth one has
// recurrent states.
TEST(EngineConstraintTest, AnswersAreEqualAloneBatchedOverlappedAndPreempted) {
  const char* const asked = std::getenv("QUIRE_CONSTRAINT_ROUNDS");
  int rounds = 8;
  ASSERT_TRUE(asked == nullptr || absl::SimpleAtoi(asked, &rounds));
  std::map<FinishReason, int> finishes;
  double late = 0, late_with_states = 0, preemptions = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<Request> requests = MixedRequests(static_cast<unsigned>(round), 30);
    const bool has_states = round % 4 == 3;
    std::map<std::string, Harness::Output> alone;
    for (const Request& request : requests) {
      Harness harness(has_states ? WithStates() : Small(1));
      harness.compile = [](const ConstraintSpec& spec) {
        return MakeTableConstraint(kByteVocab, RandomAnswers(SeedOf(spec)));
      };
      harness.Submit(request);
      harness.RunUntilIdle();
      alone[request.id] = harness.output(request.id);
      ASSERT_TRUE(alone[request.id].status.ok()) << alone[request.id].status;
      if (!request.constraint) continue;
      ExpectInLanguage(request, alone[request.id]);
      for (const auto& [choice, finish] : alone[request.id].finish) ++finishes[finish];
    }
    for (const int in_flight : {1, 2}) {
      if (has_states && in_flight > 1) continue;
      HarnessOptions options = has_states ? WithStates(22) : Small(in_flight, /*usable_pages=*/22);
      if (round % 8 % 3 == 1) options.engine.admission = AdmissionMode::kOvercommit;
      LateHarness late_harness(options);
      Harness& harness = late_harness.harness;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        harness.Submit(requests[i]);
        if (i % 4 == 3) late_harness.Step();
      }
      late_harness.RunUntilIdle();
      (has_states ? late_with_states : late) += MasksLate(harness);
      preemptions += static_cast<double>(harness.core.Stats(harness.clock.Now()).preemptions);
      for (const auto& [id, output] : harness.outputs()) {
        SCOPED_TRACE(absl::StrCat("round ", round, ", ", in_flight, " in flight, request ", id));
        ASSERT_TRUE(output.status.ok()) << output.status;
        EXPECT_EQ(output.tokens, alone[id].tokens);
        EXPECT_EQ(output.logprobs, alone[id].logprobs);
        EXPECT_EQ(output.finish, alone[id].finish);
        EXPECT_EQ(output.prompt_logprobs, alone[id].prompt_logprobs);
      }
      EXPECT_EQ(harness.cache->stats().used_pages, 0);
    }
  }
  EXPECT_GT(finishes[FinishReason::kEos], 5);
  EXPECT_GT(finishes[FinishReason::kLength], 5);
  EXPECT_GT(finishes[FinishReason::kConstraintDone], 50);
  EXPECT_GT(late, 20) << "too few masks were late";
  EXPECT_GT(late_with_states, 5);
  EXPECT_GT(preemptions, 0);
}

// Computed tokens are the tokens of prompts, those of answers except the first, and wasted ones.
TEST(EngineConstraintTest, CountsEveryTokenOfAStepOnce) {
  for (const int in_flight : {1, 2}) {
    LateHarness late_harness(Small(in_flight));
    Harness& harness = late_harness.harness;
    std::mt19937_64 random(3);
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    for (const Request& request : MixedRequests(7, 60)) {
      live.push_back(harness.Submit(request));
      for (int step = 0; step < 3; ++step) late_harness.Step();
      if (random() % 3 == 0) harness.Cancel(live[random() % live.size()], CancelSource::kApi);
    }
    late_harness.RunUntilIdle();
    std::int64_t kept = 0, choices = 0;
    for (const auto& [id, output] : harness.outputs()) {
      EXPECT_TRUE(output.ended);
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
    EXPECT_GT(MetricSum(harness.registry, "quire_constraint_mask_seconds_count"), 100);
  }
}

TEST(EngineConstraintTest, LateMaskDelaysOnlyItsRow) {
  for (const int in_flight : {1, 2}) {
    HeldHarness held(in_flight, "abcde", /*held_after=*/2);
    Harness& harness = held.harness;
    Request slow = MakeRequest("slow", MakePrompt(1, 20), 50);
    slow.constraint = Table(0);
    harness.Submit(slow);
    const auto& tokens = harness.output("slow").tokens;
    while (tokens.empty() || tokens.at(0).size() < 2) ASSERT_TRUE(harness.Step());
    // The mask is late for this step. On a busy machine others were late as well.
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(harness.Step());
    const double late = MasksLate(harness);
    EXPECT_GE(late, 1);
    harness.Submit(MakeRequest("other", MakePrompt(2, 20), 200));
    while (!harness.output("other").ended) ASSERT_TRUE(harness.Step());
    EXPECT_EQ(harness.output("other").tokens.at(0).size(), 200);
    EXPECT_THAT(tokens.at(0), ElementsAre('a', 'b'));
    EXPECT_EQ(MasksLate(harness), late) << "the row is not computed again before its mask is ready";
    EXPECT_EQ(MetricValue(harness.registry,
                          "quire_discarded_tokens_total{cause=\"late_mask\",model_name=\"m\"}"),
              late);
    // Nothing else runs. The engine waits for the mask and still handles other events.
    EXPECT_TRUE(harness.Step());
    held.gate.Set(false);
    harness.RunUntilIdle();
    EXPECT_EQ(harness.output("slow").tokens.at(0), Bytes("abcde"));
    EXPECT_EQ(harness.output("slow").finish.at(0), FinishReason::kConstraintDone);
  }
}

// A step of a model with recurrent states cannot be computed again, so the row is left out.
TEST(EngineConstraintTest, LateMaskDelaysOnlyItsRowInModelsWithStates) {
  // A prompt of one token has nothing to compute before its mask is ready.
  for (const std::size_t prompt_tokens : {std::size_t{1}, std::size_t{20}, std::size_t{90}}) {
    for (const std::uint32_t held_after : {0u, 2u}) {
      for (const std::int32_t choices : {1, 3}) {
        SCOPED_TRACE(absl::StrCat(prompt_tokens, " tokens, held after ", held_after));
        HeldHarness held(WithStates(), "abcde", held_after);
        Harness& harness = held.harness;
        harness.runner.RecordSteps(true);
        Request slow = MakeRequest("slow", MakePrompt(1, prompt_tokens), 50);
        slow.constraint = Table(0);
        slow.sampling.choice_count = choices;
        harness.Submit(slow);
        const auto& tokens = harness.output("slow").tokens;
        const auto num_tokens = [&] { return tokens.empty() ? 0 : tokens.at(0).size(); };
        while (num_tokens() < held_after) ASSERT_TRUE(harness.Step());
        for (int step = 0; step < 3; ++step) EXPECT_TRUE(harness.Step());
        harness.Submit(MakeRequest("other", MakePrompt(2, 20), 200));
        while (!harness.output("other").ended) ASSERT_TRUE(harness.Step());
        EXPECT_EQ(harness.output("other").tokens.at(0).size(), 200);
        EXPECT_EQ(num_tokens(), held_after);
        // Nothing else runs. The engine waits for the mask and still handles other events.
        EXPECT_TRUE(harness.Step());
        held.gate.Set(false);
        harness.RunUntilIdle();
        for (std::int32_t choice = 0; choice < choices; ++choice) {
          EXPECT_EQ(tokens.at(choice), Bytes("abcde"));
        }
        EXPECT_EQ(MetricSum(harness.registry, "quire_discarded_tokens_total"), 0);
        std::uint32_t computed = 0;
        for (const FakeStep& step : harness.runner.steps()) computed += step.num_tokens;
        EXPECT_EQ(computed, prompt_tokens + static_cast<std::uint32_t>(choices) * 4 + 20 + 199);
      }
    }
  }
}

TEST(EngineConstraintTest, CanBeCancelledWhileItsMaskIsLate) {
  for (const HarnessOptions& options : {Small(2), WithStates()}) {
    Gate gate;
    gate.Set(true);
    MatcherHooks hooks;
    hooks.before_mask = [&gate](std::uint32_t accepted) {
      if (accepted == 1) gate.Pass();
    };
    Harness harness(options);
    const absl::Cleanup open = [&gate] { gate.Set(false); };
    harness.compile = [&](const ConstraintSpec&) {
      return std::make_shared<HookedConstraint>(Answers{Bytes("abc")}, hooks);
    };
    Request request = MakeRequest("a", MakePrompt(1, 20), 50);
    request.constraint = Table(0);
    const auto live = harness.Submit(request);
    while (MasksLate(harness) == 0) ASSERT_TRUE(harness.Step());
    harness.Cancel(live, CancelSource::kApi);
    EXPECT_EQ(ReasonOf(harness.output("a").status), "CANCELLED_BY_CALLER");
    harness.Settle();
    EXPECT_EQ(harness.cache->stats().used_pages, 0);
    EXPECT_EQ(harness.cache->stats().live_state_slots, 0);
  }
}

// The mask ends the choice after its last step, whose metrics still counted its pages as used.
TEST(EngineConstraintTest, MetricsIncludeAChoiceThatEndedWithoutAStep) {
  HeldHarness held(/*in_flight=*/2, "abc", /*held_after=*/3);
  Harness& harness = held.harness;
  Request request = MakeRequest("a", MakePrompt(1, 20), 50);
  request.constraint = Table(0);
  harness.Submit(request);
  const auto used_pages = [&] {
    return MetricValue(harness.registry, "quire_kv_cache_pages{model_name=\"m\",state=\"used\"}");
  };
  const auto& tokens = harness.output("a").tokens;
  while (tokens.empty() || tokens.at(0).size() < 3) ASSERT_TRUE(harness.Step());
  // The first step misses its mask, the second one waits for it.
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(harness.Step());
  EXPECT_GT(used_pages(), 0);
  held.gate.Set(false);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("a").finish.at(0), FinishReason::kConstraintDone);
  EXPECT_EQ(harness.cache->stats().used_pages, 0);
  EXPECT_EQ(used_pages(), 0);
}

TEST(EngineConstraintTest, ConstraintFailureEndsOnlyItsRequest) {
  const auto run = [](Answers answers, std::uint32_t fails_at, std::int32_t min_tokens) {
    Harness harness(Small(2));
    MatcherHooks hooks;
    hooks.fails_at = fails_at;
    harness.compile = [&](const ConstraintSpec&) {
      return std::make_shared<HookedConstraint>(answers, hooks);
    };
    Request request = MakeRequest("a", MakePrompt(1, 20), 50);
    request.constraint = Table(0);
    request.stopping.min_tokens = min_tokens;
    harness.Submit(request);
    harness.Submit(MakeRequest("b", MakePrompt(2, 20), 30));
    harness.RunUntilIdle();
    EXPECT_TRUE(harness.output("b").status.ok());
    return harness.output("a");
  };
  const auto stage = [](const Harness::Output& output) {
    const auto reason = GetErrorReason(output.status);
    EXPECT_EQ(reason->reason, Reason::kBadConstraint) << output.status;
    return reason->metadata.at(0).second;
  };
  EXPECT_EQ(stage(run({Bytes("abcdef")}, /*fails_at=*/3, 0)), "limit");
  EXPECT_EQ(stage(run({}, ~0u, 0)), "decode") << "neither a token nor the end is allowed";
  // Where only the end is allowed, it is accepted before min_tokens.
  const Harness::Output done = run({Bytes("ab")}, ~0u, /*min_tokens=*/10);
  EXPECT_EQ(done.tokens.at(0), Bytes("ab"));
  EXPECT_EQ(done.finish.at(0), FinishReason::kConstraintDone);
  // The end is masked while the text may continue.
  const Harness::Output longer = run({Bytes("a"), Bytes("ab"), Bytes("abc")}, ~0u, 3);
  EXPECT_EQ(longer.tokens.at(0), Bytes("abc"));
}

TEST(EngineConstraintTest, BannedTextNeverOccursAndAffectsNoOtherRequest) {
  const std::vector<std::string> strings = {"a", "b", "c", "d", "ee", "\x01\x02", "zz"};
  for (const int in_flight : {1, 2}) {
    Harness together(Small(in_flight));
    std::vector<Request> requests;
    for (int i = 0; i < 20; ++i) {
      Request request = MakeRequest(absl::StrCat("r", i), MakePrompt(1, 20), 60);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      request.sampling.seed = static_cast<std::uint64_t>(i);
      if (i % 3 != 0) request.sampling.banned_text = strings;
      requests.push_back(request);
      together.Submit(request);
    }
    together.RunUntilIdle();
    for (const Request& request : requests) {
      const Harness::Output& output = together.output(request.id);
      ASSERT_TRUE(output.status.ok()) << output.status;
      Harness alone(Small(1));
      alone.Submit(request);
      alone.RunUntilIdle();
      EXPECT_EQ(output.tokens, alone.output(request.id).tokens);
      for (const std::string& banned : request.sampling.banned_text) {
        std::string text;
        for (const std::int32_t token : output.tokens.at(0)) {
          if (token < 256) text.push_back(static_cast<char>(token));
        }
        EXPECT_EQ(text.find(banned), std::string::npos);
      }
    }
  }
}

TEST(EngineConstraintTest, BanThatContradictsTheConstraintEndsTheRequest) {
  Harness harness(Small(2));
  harness.compile = [](const ConstraintSpec&) {
    return MakeTableConstraint(kByteVocab, {Bytes("abc"), Bytes("abd")});
  };
  for (const auto& [id, banned] : {std::pair("one left", "bc"), std::pair("none left", "ab")}) {
    Request request = MakeRequest(id, MakePrompt(1, 20), 60);
    request.constraint = Table(0);
    request.sampling.banned_text = {banned};
    harness.Submit(request);
  }
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("one left").tokens.at(0), Bytes("abd"));
  const absl::Status& status = harness.output("none left").status;
  EXPECT_EQ(ReasonOf(status), "BAD_CONSTRAINT");
  EXPECT_EQ(status.message(),
            "constraint and sampling.banned_text exclude every token of the vocabulary");
  EXPECT_THAT(harness.output("none left").tokens.at(0), ElementsAre('a'));
}

TEST(EngineConstraintTest, OnlyAllowedTokensAreSampled) {
  const std::vector<std::int32_t> allowed = {'a', 'b', 'c', 'd', kEosToken};
  for (const int in_flight : {1, 2}) {
    Harness together(Small(in_flight));
    std::vector<Request> requests;
    for (int i = 0; i < 16; ++i) {
      Request request = MakeRequest(absl::StrCat("r", i), MakePrompt(1, 20), 40);
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
      request.sampling.seed = static_cast<std::uint64_t>(i);
      if (i % 4 != 0) request.sampling.allowed_token_ids = allowed;
      if (i % 4 == 2) request.sampling.banned_text = {"ab"};
      if (i % 4 == 3) request.sampling.dry = {.multiplier = 1, .allowed_length = 1};
      if (i % 8 == 5) request.sampling.choice_count = 3;
      if (i % 8 == 1) request.stopping.min_tokens = 30;
      requests.push_back(request);
      together.Submit(request);
    }
    together.RunUntilIdle();
    for (const Request& request : requests) {
      const Harness::Output& output = together.output(request.id);
      ASSERT_TRUE(output.status.ok()) << output.status;
      Harness alone(Small(1));
      alone.Submit(request);
      alone.RunUntilIdle();
      EXPECT_EQ(output.tokens, alone.output(request.id).tokens);
      if (request.sampling.allowed_token_ids.empty()) continue;
      for (const auto& [choice, tokens] : output.tokens) {
        EXPECT_THAT(tokens, ::testing::Each(::testing::AnyOfArray(allowed))) << request.id;
      }
    }
  }
}

TEST(EngineConstraintTest, AllowedTokensNarrowTheConstraint) {
  Harness harness(Small(2));
  harness.compile = [](const ConstraintSpec&) {
    return MakeTableConstraint(kByteVocab, {Bytes("abc"), Bytes("abd")});
  };
  for (const auto& [id, allowed] : {std::pair("one left", "abd"), std::pair("none left", "ab")}) {
    Request request = MakeRequest(id, MakePrompt(1, 20), 60);
    request.constraint = Table(0);
    request.sampling.allowed_token_ids = Bytes(allowed);
    harness.Submit(request);
  }
  harness.RunUntilIdle();
  EXPECT_EQ(harness.output("one left").tokens.at(0), Bytes("abd"));
  const absl::Status status = harness.output("none left").status;
  EXPECT_EQ(ReasonOf(status), "BAD_CONSTRAINT");
  EXPECT_EQ(GetErrorReason(status)->Find("field"), "sampling.allowed_token_ids");
  EXPECT_EQ(status.message(),
            "constraint and sampling.allowed_token_ids exclude every token of the vocabulary");
}

// An engine whose constraint compiler runs next to it. Builds wait at the gate.
class EngineCompileTest : public ::testing::Test {
 protected:
  EngineCompileTest()
      : compiler_(
            {}, [this](const ConstraintSpec& spec, const std::stop_token&) { return Build(spec); },
            nullptr) {
    HarnessOptions options = MakeHarnessOptions(
        {.usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024}, 2);
    options.engine.constraints = &compiler_;
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    auto engine = Engine::Create(options.engine, MakeCache(options.pool), runner_.get(),
                                 tokenizer_.get(), &clock_, nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  ~EngineCompileTest() override { gate_.Set(false); }

  ConstraintCompiler::Result Build(const ConstraintSpec& spec) {
    gate_.Pass();
    if (spec.text == "bad") return BadConstraint("compile", "bad");
    return MakeTableConstraint(kByteVocab, {Bytes("yes"), Bytes("no")});
  }
  Request Constrained(std::string id, std::string text = "words") {
    Request request = MakeRequest(std::move(id), MakePrompt(1, 20), 50);
    request.constraint.emplace().text = std::move(text);
    return request;
  }
  Reading Run(Request request) {
    auto stream = engine_->Accept(std::move(request));
    if (stream.ok()) return ReadAll(**stream);
    Reading reading;
    reading.status = stream.status();
    return reading;
  }
  RequestState StateOf(const std::string& id) {
    for (const RequestInfo& info : engine_->ListRequests()) {
      if (info.id == id) return info.state;
    }
    return RequestState::kFinished;
  }
  void ExpectIdle() {
    EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
    EXPECT_TRUE(engine_->CheckIntegrity().ok());
    EXPECT_EQ(engine_->GetStats().cache.used_pages, 0);
    EXPECT_EQ(engine_->GetStats().waiting, 0);
    EXPECT_EQ(engine_->GetStats().waiting_uncached_tokens, 0);
  }

  Gate gate_;
  ConstraintCompiler compiler_;
  MachineClock clock_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineCompileTest, RequestWaitsForItsConstraintWithoutBlockingOthers) {
  gate_.Set(true);
  auto stream = engine_->Accept(Constrained("a"));
  ASSERT_TRUE(stream.ok()) << stream.status();
  gate_.AwaitArrival();
  EXPECT_TRUE(WaitUntil([this] { return StateOf("a") == RequestState::kQueued; }));
  EXPECT_TRUE(Run(MakeRequest("b", MakePrompt(2, 20), 30)).status.ok());
  gate_.Set(false);
  const Reading reading = ReadAll(**stream);
  ASSERT_TRUE(reading.status.ok()) << reading.status;
  EXPECT_EQ(reading.order_errors, "");
  EXPECT_EQ(reading.choices.at(0).finish, FinishReason::kConstraintDone);
  EXPECT_THAT((std::vector<std::string>{"yes", "no"}), Contains(reading.choices.at(0).text));
  // The second request hits the cache and needs no stream.
  Request again = Constrained("again");
  again.output.stream = false;
  EXPECT_EQ(Run(again).choices.at(0).text, reading.choices.at(0).text);
  EXPECT_EQ(compiler_.GetCounts().hits, 1);
  ExpectIdle();
}

TEST_F(EngineCompileTest, RejectedConstraintEndsItsRequest) {
  const Reading reading = Run(Constrained("a", "bad"));
  EXPECT_EQ(ReasonOf(reading.status), "BAD_CONSTRAINT");
  EXPECT_FALSE(reading.got_started);
  ExpectIdle();
  Request endless = Constrained("b");
  endless.stopping.ignore_eos = true;
  EXPECT_EQ(ReasonOf(Run(endless).status), "BAD_PARAMETER");
}

TEST_F(EngineCompileTest, CancelAndDeadlineEndARequestWhileItCompiles) {
  gate_.Set(true);
  auto cancelled = engine_->Accept(Constrained("cancelled"));
  Request late = Constrained("late", "other words");
  late.deadline = clock_.Now() + absl::Milliseconds(50);
  auto expired = engine_->Accept(late);
  ASSERT_TRUE(cancelled.ok() && expired.ok());
  EXPECT_TRUE(WaitUntil([this] { return StateOf("cancelled") == RequestState::kQueued; }));
  EXPECT_TRUE(engine_->Cancel({"default", "p"}, "cancelled", CancelSource::kApi));
  EXPECT_EQ(ReasonOf(ReadAll(**cancelled).status), "CANCELLED_BY_CALLER");
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadAll(**expired).status));
  gate_.Set(false);
  ExpectIdle();
}

TEST_F(EngineCompileTest, RejectsConstraintsWithoutACompiler) {
  HarnessOptions options = MakeHarnessOptions(
      {.usable_pages = 20, .page_size = 16, .max_rows = 2, .max_context_tokens = 100});
  FakeRunner runner(options.runner);
  auto engine = Engine::Create(options.engine, MakeCache(options.pool), &runner, tokenizer_.get(),
                               &clock_, nullptr);
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(ReasonOf((*engine)->Accept(Constrained("a")).status()), "FEATURE_UNSUPPORTED");
}

// Compares random vocabularies over two letters with a search in the whole text.
TEST(BannedTextTest, ExcludesExactlyTokensThatCompleteAString) {
  std::mt19937_64 random(9);
  const auto word = [&](std::size_t max) {
    std::string text(1 + random() % max, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  int excluded = 0, allowed = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts = {"a", "b", ""};
    while (texts.size() < 40) texts.push_back(word(5));
    std::vector<std::string> strings;
    for (std::uint64_t i = 0; i <= random() % 5; ++i) strings.push_back(word(6));
    const BannedText banned(strings, std::make_shared<const TokenTexts>(texts));
    ASSERT_EQ(banned.vocab_size(), texts.size());
    std::string answer;
    std::int32_t state = BannedText::kStart;
    for (int step = 0; step < 20; ++step) {
      std::vector<std::uint32_t> words(MaskWords(banned.vocab_size()), ~0u);
      banned.Exclude(state, words);
      std::vector<std::int32_t> left;
      for (std::size_t id = 0; id < texts.size(); ++id) {
        const std::string longer = answer + texts[id];
        const bool completes = std::ranges::any_of(strings, [&](const std::string& text) {
          return longer.find(text) != std::string::npos;
        });
        ASSERT_EQ((words[id / 32] >> (id % 32) & 1) == 0, completes) << longer;
        ++(completes ? excluded : allowed);
        if (!completes && !texts[id].empty()) left.push_back(static_cast<std::int32_t>(id));
      }
      if (left.empty()) break;
      const std::int32_t token = left[random() % left.size()];
      answer += texts[static_cast<std::size_t>(token)];
      state = banned.Next(state, token);
    }
  }
  EXPECT_GT(excluded, 10000);
  EXPECT_GT(allowed, 10000);
}

// Tests the pool alone: random choices advance, are dropped and are read in any order.
TEST(MaskPoolTest, MasksEqualTheMatcherInAnyOrder) {
  const MachineClock clock;
  MaskPool pool(3, &clock, {});
  struct Pair {
    std::shared_ptr<ChoiceMask> choice;
    std::unique_ptr<ConstraintMatcher> matcher;  // queried directly, next to the pool
  };
  std::vector<Pair> pairs;
  std::mt19937_64 random(5);
  std::vector<std::uint32_t> words(MaskWords(kByteVocab));
  const std::vector<std::int32_t> ends = {kEosToken};
  int compared = 0;
  for (int i = 0; i < 4000; ++i) {
    if (pairs.size() < 20 && random() % 4 == 0) {
      const auto table = MakeTableConstraint(kByteVocab, RandomAnswers(random()));
      pairs.push_back({pool.Start({.constraint = table, .end_tokens = ends, .banned = nullptr}),
                       table->NewMatcher(ends)});
      continue;
    }
    if (pairs.empty()) continue;
    Pair& pair = pairs[random() % pairs.size()];
    const ChoiceMask* const awaited = pair.choice.get();
    if (random() % 4 != 0) pool.WaitAll({&awaited, 1}, absl::Seconds(60));
    bool ends_here = random() % 30 == 0;
    if (!ends_here && pair.choice->is_ready()) {
      const auto summary = pair.matcher->FillMask(words);
      ASSERT_TRUE(summary.ok() && pair.choice->status().ok());
      ASSERT_EQ(pair.choice->words(), words);
      ASSERT_EQ(pair.choice->is_finished(), summary->may_end && !summary->may_continue);
      ++compared;
      ends_here = !summary->may_continue;
      for (std::int32_t token = 0; token < 256 && !ends_here; ++token) {
        const auto id = static_cast<std::uint32_t>(token);
        if ((words[id / 32] >> (id % 32) & 1) == 0) continue;
        ASSERT_TRUE(pair.matcher->Accept(token).ok());
        pool.Advance(pair.choice, token);
        break;
      }
    }
    if (ends_here) pairs.erase(pairs.begin() + (&pair - pairs.data()));
    std::vector<const ChoiceMask*> masks;
    masks.reserve(pairs.size());
    for (const Pair& left : pairs) masks.push_back(left.choice.get());
    const absl::Status status = pool.CheckIntegrity(masks);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_GT(compared, 1000);
}

// A pool with one thread, which a gate blocks while others queue up.
class FairMasksTest : public ::testing::Test {
 protected:
  // Each mask takes `time` of the clock.
  void Start(absl::Duration time) {
    MatcherHooks hooks;
    hooks.before_mask = [this, time, name = static_cast<int>(choices_.size())](std::uint32_t) {
      begun_.fetch_add(1);
      gate_.Pass();
      clock_.Advance(time);
      MutexLock lock(&mutex_);
      made_.push_back(name);
    };
    const auto constraint =
        std::make_shared<HookedConstraint>(Answers{std::vector(99, 97)}, std::move(hooks));
    choices_.push_back(
        pool_.Start({.constraint = constraint, .end_tokens = {}, .banned = nullptr}));
  }
  void Advance(int name) { pool_.Advance(choices_[static_cast<std::size_t>(name)], 'a'); }
  // Starts the mask of this choice and blocks it.
  void Hold(int name) {
    gate_.Set(true);
    const int before = begun_.load();
    Advance(name);
    ASSERT_TRUE(WaitUntil([&] { return begun_.load() > before; }));
  }
  // Returns the order of completion since the last call.
  std::vector<int> AwaitAll() {
    gate_.Set(false);
    std::vector<const ChoiceMask*> all;
    for (const auto& choice : choices_) all.push_back(choice.get());
    EXPECT_TRUE(pool_.CheckIntegrity(all).ok());
    pool_.WaitAll(all, absl::Seconds(60));
    EXPECT_TRUE(pool_.CheckIntegrity(all).ok());
    MutexLock lock(&mutex_);
    return std::exchange(made_, {});
  }

  static constexpr absl::Duration kDear = absl::Milliseconds(30);

  quire::testing::FakeClock clock_;
  Gate gate_;
  std::atomic<int> begun_{0};
  Mutex mutex_;
  std::vector<int> made_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ChoiceMask>> choices_;
  MaskPool pool_{1, &clock_, {}, [this] { return clock_.Now() - absl::Time(); }};
};

TEST_F(FairMasksTest, CheapMaskWaitsOnlyForTheCurrentOne) {
  for (int i = 0; i < 5; ++i) Start(kDear);
  Start(absl::ZeroDuration());
  EXPECT_THAT(AwaitAll(), ElementsAre(0, 1, 2, 3, 4, 5));
  for (int round = 0; round < 3; ++round) {
    Hold(0);
    for (int i = 1; i < 6; ++i) Advance(i);
    EXPECT_THAT(AwaitAll(), ElementsAre(0, 5, 1, 2, 3, 4));
  }
}

TEST_F(FairMasksTest, UnusedTurnsDoNotAccumulate) {
  for (int i = 0; i < 3; ++i) Start(kDear);
  EXPECT_THAT(AwaitAll(), ElementsAre(0, 1, 2));
  for (int i = 0; i < 10; ++i) {
    Hold(0);
    Advance(1);
    EXPECT_THAT(AwaitAll(), ElementsAre(0, 1));
  }
  // Choice 2 used the time of one mask, the others that of eleven. Each has one turn nevertheless.
  Hold(0);
  Advance(2);
  Advance(1);
  EXPECT_THAT(AwaitAll(), ElementsAre(0, 2, 1));
  Hold(1);
  Advance(0);
  Advance(2);
  EXPECT_THAT(AwaitAll(), ElementsAre(1, 0, 2));
}

}  // namespace
}  // namespace quire::engine
