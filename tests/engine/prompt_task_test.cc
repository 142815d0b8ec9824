// Requests that end with their prompts: scores of a continuation, and pooled hidden states.

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

Request MakeScore(std::string id, std::vector<std::int32_t> context,
                  std::vector<std::int32_t> continuation) {
  Request request = MakeRequest(std::move(id), {}, 0);
  request.task = Task::kScore;
  request.prompt = ScorePrompt{.context_text = {},
                               .context_ids = std::move(context),
                               .continuation_text = {},
                               .continuation_ids = std::move(continuation)};
  request.output.prompt_logprobs = 0;
  return request;
}

Request MakeEmbed(std::string id, std::vector<std::int32_t> prompt, Pooling pooling) {
  Request request = MakeRequest(std::move(id), std::move(prompt), 0);
  request.task = Task::kEmbed;
  request.pooling = pooling;
  return request;
}

// Returns the answer of the request alone, in one step, without a cache.
Harness::Output Alone(Request request) {
  Harness harness(MakeHarnessOptions({}));
  const std::string id = request.id;
  harness.Submit(std::move(request));
  harness.RunUntilIdle();
  return harness.output(id);
}

TEST(PromptTaskTest, ScoresThePositionsOfTheContinuationAndSamplesNothing) {
  Harness harness(MakeHarnessOptions({}));
  const auto context = MakePrompt(1, 40);
  const auto continuation = MakePrompt(2, 3);
  harness.Submit(MakeScore("s", context, continuation));
  harness.RunUntilIdle();
  const Harness::Output& score = harness.output("s");
  EXPECT_TRUE(score.ended && score.status.ok()) << score.status;
  EXPECT_THAT(score.prompt_positions, ::testing::ElementsAre(40, 41, 42));
  EXPECT_TRUE(score.tokens.empty() && score.finish.empty());
  // A generation with prompt log-probabilities computes the same rows.
  auto whole = context;
  whole.insert(whole.end(), continuation.begin(), continuation.end());
  Request generation = MakeRequest("g", whole, 1);
  generation.output.prompt_logprobs = 0;
  const Harness::Output expected = Alone(std::move(generation));
  EXPECT_EQ(score.prompt_logprobs, std::vector<float>(expected.prompt_logprobs.begin() + 39,
                                                      expected.prompt_logprobs.end()));
}

TEST(PromptTaskTest, ScoresAfterCachedContextPages) {
  Harness harness(MakeHarnessOptions({}));
  const auto context = MakePrompt(1, 64);
  for (int i = 0; i < 3; ++i) {
    harness.Submit(MakeScore(absl::StrCat(i), context, MakePrompt(10 + i, 5)));
    harness.RunUntilIdle();
    const Harness::Output& cached = harness.output(absl::StrCat(i));
    const Harness::Output cold = Alone(MakeScore("c", context, MakePrompt(10 + i, 5)));
    EXPECT_EQ(cached.prompt_logprobs, cold.prompt_logprobs);
    EXPECT_EQ(cached.prompt_positions, cold.prompt_positions);
    // The row of the context's last token is computed, since its logits are needed.
    EXPECT_EQ(cached.cached_tokens, i == 0 ? 0 : 63);
  }
}

TEST(PromptTaskTest, PoolsLastFirstOrMean) {
  const auto prompt = MakePrompt(3, 100);
  const Harness::Output first = Alone(MakeEmbed("c", prompt, Pooling::kCls));
  const Harness::Output last = Alone(MakeEmbed("l", prompt, Pooling::kLast));
  const Harness::Output mean = Alone(MakeEmbed("m", prompt, Pooling::kMean));
  EXPECT_EQ(first.pooled, Alone(MakeEmbed("c", {prompt[0], 1, 2}, Pooling::kCls)).pooled);
  std::vector<float> sum(FakeRunner::kHidden);
  for (std::size_t i = 1; i <= prompt.size(); ++i) {
    const std::vector<std::int32_t> start(prompt.begin(), prompt.begin() + std::ptrdiff_t(i));
    const Harness::Output state = Alone(MakeEmbed("l", start, Pooling::kLast));
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += state.pooled.at(k);
  }
  EXPECT_EQ(last.pooled, Alone(MakeEmbed("l", prompt, Pooling::kLast)).pooled);
  for (float& value : sum) value /= 100;
  EXPECT_EQ(mean.pooled, sum);
}

TEST(PromptTaskTest, UsesTheCacheForLastTokenPoolingOnly) {
  Harness harness(MakeHarnessOptions({}));
  const auto prompt = MakePrompt(3, 64);
  harness.Submit(MakeEmbed("first", prompt, Pooling::kLast));
  harness.RunUntilIdle();
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean, Pooling::kCls}) {
    const std::string id = absl::StrCat("again", static_cast<int>(pooling));
    harness.Submit(MakeEmbed(id, prompt, pooling));
    harness.RunUntilIdle();
    EXPECT_EQ(harness.output(id).cached_tokens, pooling == Pooling::kLast ? 63 : 0);
    EXPECT_EQ(harness.output(id).pooled, Alone(MakeEmbed("c", prompt, pooling)).pooled);
  }
}

TEST(PromptTaskTest, NonFiniteStatesFailOnlyTheirRequest) {
  HarnessOptions options = MakeHarnessOptions({});
  options.runner.poison_token = kPoisonToken;
  Harness harness(options);
  auto poisoned = MakePrompt(4, 40);
  poisoned[39] = kPoisonToken;
  harness.Submit(MakeEmbed("e", poisoned, Pooling::kMean));
  harness.Submit(MakeScore("s", poisoned, {1, 2}));
  harness.Submit(MakeEmbed("good", MakePrompt(4, 39), Pooling::kMean));
  harness.RunUntilIdle();
  for (const char* id : {"e", "s"}) {
    EXPECT_EQ(GetErrorReason(harness.output(id).status)->reason, Reason::kNonFiniteLogits);
    EXPECT_TRUE(harness.output(id).pooled.empty());
  }
  EXPECT_TRUE(harness.output("good").status.ok());
}

TEST(PromptTaskTest, ComputesAPromptOfTheWholeContext) {
  PoolOptions pool;
  pool.max_context_tokens = 96;
  Harness harness(MakeHarnessOptions(pool));
  harness.Submit(MakeEmbed("all", MakePrompt(5, 96), Pooling::kLast));
  harness.Submit(MakeEmbed("more", MakePrompt(5, 97), Pooling::kLast));
  Request cut = MakeEmbed("cut", MakePrompt(5, 97), Pooling::kLast);
  cut.truncate_prompt = true;
  harness.Submit(std::move(cut));
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("all").status.ok()) << harness.output("all").status;
  EXPECT_EQ(GetErrorReason(harness.output("more").status)->reason, Reason::kPromptTooLong);
  EXPECT_EQ(harness.output("cut").pooled, harness.output("all").pooled);
}

TEST(PromptTaskTest, EmptyContextIsTheBeginOfSequenceToken) {
  Harness without(MakeHarnessOptions({}));
  without.Submit(MakeScore("s", {}, {1, 2}));
  without.RunUntilIdle();
  EXPECT_EQ(GetErrorReason(without.output("s").status)->reason, Reason::kPromptMissing);
  HarnessOptions options = MakeHarnessOptions({});
  options.engine.bos_token_id = 257;
  Harness harness(options);
  harness.Submit(MakeScore("s", {}, {1, 2}));
  harness.Submit(MakeScore("named", {257}, {1, 2}));
  harness.Submit(MakeScore("nothing", {1}, {}));
  harness.Submit(MakeScore("unknown", {1}, {kByteVocab}));
  harness.RunUntilIdle();
  EXPECT_THAT(harness.output("s").prompt_positions, ::testing::ElementsAre(1, 2));
  EXPECT_EQ(harness.output("s").prompt_logprobs, harness.output("named").prompt_logprobs);
  EXPECT_EQ(GetErrorReason(harness.output("nothing").status)->reason, Reason::kPromptMissing);
  EXPECT_EQ(GetErrorReason(harness.output("unknown").status)->reason, Reason::kBadTokenId);
}

struct Drawn {
  Request request;
  bool is_cancelled = false;
};

// Draws from a few contexts, so that pages are shared.
Drawn Draw(std::mt19937_64& random, int index) {
  auto prompt = MakePrompt(random() % 4, 1 + random() % 90);
  const auto own = MakePrompt(1000 + static_cast<std::uint64_t>(index), 1 + random() % 20);
  const std::string id = absl::StrCat("r", index);
  const bool is_cancelled = random() % 10 == 0;
  switch (random() % 3) {
    case 0:
      return {MakeScore(id, prompt, own), is_cancelled};
    case 1:
      prompt.insert(prompt.end(), own.begin(), own.end());
      return {MakeEmbed(id, prompt, static_cast<Pooling>(random() % 3)), is_cancelled};
    default:
      return {MakeRequest(id, prompt, 1 + static_cast<std::int32_t>(random() % 20)), is_cancelled};
  }
}

// The result is bitwise equal to the request alone in any batch, with any chunking and with
// preemption. Harness::Step checks the integrity of everything.
TEST(PromptTaskTest, ResultIsBitwiseEqualInAnyBatch) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    PoolOptions pool;
    pool.usable_pages = 16 + static_cast<std::uint32_t>(random() % 24);
    pool.max_rows = 1 + static_cast<std::uint32_t>(random() % 8);
    HarnessOptions options = MakeHarnessOptions(pool, 1 + static_cast<int>(random() % 2));
    options.engine.admission =
        random() % 2 == 0 ? AdmissionMode::kSafe : AdmissionMode::kOvercommit;
    options.engine.prefill_chunk_tokens = 16 << random() % 3;
    options.engine.max_step_tokens = 32;
    Harness harness(options);
    std::vector<Drawn> drawn;
    for (int i = 0; i < 24; ++i) {
      drawn.push_back(Draw(random, i));
      const auto live = harness.Submit(drawn.back().request);
      for (std::uint64_t steps = random() % 3; steps > 0; --steps) harness.Step();
      if (drawn.back().is_cancelled) harness.Cancel(live, CancelSource::kClient);
    }
    harness.RunUntilIdle();
    for (const Drawn& one : drawn) {
      const Harness::Output& output = harness.output(one.request.id);
      ASSERT_TRUE(output.ended);
      if (one.is_cancelled) continue;
      const Harness::Output expected = Alone(one.request);
      EXPECT_EQ(output.status, expected.status);
      EXPECT_EQ(output.tokens, expected.tokens);
      EXPECT_EQ(output.prompt_positions, expected.prompt_positions);
      EXPECT_EQ(output.prompt_logprobs, expected.prompt_logprobs);
      EXPECT_EQ(output.pooled, expected.pooled);
    }
    EXPECT_EQ(harness.cache->available_pages(), harness.cache->usable_pages());
  }
}

}  // namespace
}  // namespace quire::engine
