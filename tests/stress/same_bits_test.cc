// Runs 64 prompts, half greedy and half seeded at temperature 1. Each runs alone, then all run in
// random order from 16 clients in a tiny pool with overcommit. A quarter is constrained. Tokens and
// log-probabilities must be bitwise equal.

#include <algorithm>
#include <bit>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/constraint/constraint_compiler.h"
#include "gtest/gtest.h"
#include "tests/engine/stream_reader.h"
#include "tests/stress/real_model.h"

namespace quire::engine {
namespace {

constexpr int kPrompts = 64;
constexpr int kClients = 16;

std::vector<Request> MakeRequests(std::int32_t vocab) {
  std::mt19937_64 random(20261121);
  auto tokens = [&](std::size_t count) {
    std::vector<std::int32_t> ids(count);
    for (std::int32_t& id : ids) {
      id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab));
    }
    return ids;
  };
  std::vector<std::vector<std::int32_t>> starts;
  for (int i = 0; i < 6; ++i) starts.push_back(tokens(32 + random() % 17));
  std::vector<Request> requests;
  for (int i = 0; i < kPrompts; ++i) {
    std::vector<std::int32_t> prompt = starts[static_cast<std::size_t>(i) % starts.size()];
    const std::vector<std::int32_t> rest = tokens(1 + random() % 20);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    Request request;
    request.id = absl::StrCat("r", i);
    request.principal = std::string("p");
    request.model = std::string("m");
    request.prompt = std::move(prompt);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random();
    if (i % 8 == 5) request.sampling.repetition_penalty = 1.2f;
    if (i % 8 == 1) request.sampling.top_n_sigma = 1.5f;
    if (i % 8 == 3) request.sampling.xtc_probability = 0.5f;
    if (i % 8 == 4 || i % 16 == 7) request.sampling.dry.multiplier = 1;
    if (i % 16 == 4) request.sampling.logit_bias = {{5, 1.0f}, {9, -1.0f}};
    request.stopping.max_tokens = 60 + static_cast<std::int32_t>(random() % 50);
    if (i % 4 == 3) request.constraint.emplace();
    request.stopping.ignore_eos = i % 4 != 3;
    request.output.stream = i % 3 != 0;
    request.output.token_ids = true;
    request.output.logprobs = i % 4;
    requests.push_back(std::move(request));
  }
  return requests;
}

// A language without an end that depends on the position. After each token it allows a quarter of
// the vocabulary.
class StripesMatcher final : public ConstraintMatcher {
 public:
  StripesMatcher(std::uint32_t vocab, std::span<const std::int32_t> ends)
      : vocab_(vocab), ends_(ends.begin(), ends.end()) {}
  absl::Status Accept(std::int32_t token) override {
    if (!Allows(token)) return absl::InvalidArgumentError("not in the stripe");
    tokens_.push_back(token);
    return absl::OkStatus();
  }
  absl::StatusOr<MaskSummary> FillMask(std::span<std::uint32_t> words) override {
    std::ranges::fill(words, 0u);
    for (std::uint32_t id = 0; id < vocab_; ++id) {
      if (Allows(static_cast<std::int32_t>(id))) words[id / 32] |= 1u << (id % 32);
    }
    return MaskSummary{.may_continue = true};
  }
  std::uint32_t num_accepted() const override { return static_cast<std::uint32_t>(tokens_.size()); }
  std::unique_ptr<ConstraintMatcher> Fork() const override {
    return std::make_unique<StripesMatcher>(*this);
  }
  absl::Status CheckIntegrity() const override { return absl::OkStatus(); }

 private:
  bool Allows(std::int32_t token) const {
    if (std::ranges::count(ends_, token) > 0) return false;
    const std::size_t last = tokens_.empty() ? 0 : static_cast<std::size_t>(tokens_.back());
    return (static_cast<std::size_t>(token) + 3 * last + tokens_.size()) % 4 == 0;
  }

  std::uint32_t vocab_;
  std::vector<std::int32_t> ends_;
  std::vector<std::int32_t> tokens_;
};

class Stripes final : public CompiledConstraint {
 public:
  explicit Stripes(std::uint32_t vocab) : vocab_(vocab) {}
  std::unique_ptr<ConstraintMatcher> NewMatcher(
      std::span<const std::int32_t> end_tokens) const override {
    return std::make_unique<StripesMatcher>(vocab_, end_tokens);
  }
  std::uint32_t vocab_size() const override { return vocab_; }
  std::int64_t MemoryBytes() const override { return 1; }

 private:
  const std::uint32_t vocab_;
};

struct Running {
  Running(StressModel& model, const StressPool& pool, AdmissionMode mode,
          absl::Duration step_time_target)
      : runner(model.MakeRunner(pool)) {
    EngineOptions options = model.Options(pool);
    const auto vocab = static_cast<std::uint32_t>(options.vocab_size);
    compiler = std::make_unique<ConstraintCompiler>(
        ConstraintOptions{},
        [vocab](const ConstraintSpec&, const std::stop_token&) {
          return std::make_shared<const Stripes>(vocab);
        },
        nullptr);
    options.constraints = compiler.get();
    options.admission = mode;
    options.step_time_target = step_time_target;
    auto made = Engine::Create(options, model.MakeCacheManager(pool), runner.get(),
                               &model.tokenizer(), &clock, nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
    engine = *std::move(made);
  }
  MachineClock clock;
  std::unique_ptr<runtime::StepRunner> runner;
  std::unique_ptr<ConstraintCompiler> compiler;
  std::unique_ptr<Engine> engine;
};

std::vector<Reading> RunAlone(StressModel& model, const std::vector<Request>& requests) {
  Running running(model, {.usable_pages = 64, .max_rows = 4, .max_context_tokens = 512},
                  AdmissionMode::kSafe, absl::InfiniteDuration());
  std::vector<Reading> readings;
  for (Request request : requests) {
    request.cache.skip_read = true;
    auto stream = running.engine->Accept(std::move(request));
    EXPECT_TRUE(stream.ok()) << stream.status();
    readings.push_back(ReadAll(**stream));
  }
  return readings;
}

// A target so short that prompts next to decode rows run in chunks of half a page.
constexpr absl::Duration kNoTime = absl::Nanoseconds(1);

struct PooledRun {
  std::uint32_t usable_pages = 52;
  absl::Duration step_time_target = absl::InfiniteDuration();
  // Pages of windows are short-lived, so reuse depends on the order of admission.
  std::uint64_t min_hit_tokens = 500;
};

std::vector<Reading> RunPooled(StressModel& model, const std::vector<Request>& requests,
                               const PooledRun& run, EngineStats* stats) {
  Running running(model,
                  {.usable_pages = run.usable_pages, .max_rows = 16, .max_context_tokens = 512},
                  AdmissionMode::kOvercommit, run.step_time_target);
  std::vector<std::size_t> order(requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(std::random_device{}()));
  std::vector<Reading> readings(requests.size());
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (std::size_t i = c; i < order.size(); i += kClients) {
        auto stream = running.engine->Accept(requests[order[i]]);
        ASSERT_TRUE(stream.ok()) << stream.status();
        streams.push_back(*std::move(stream));
      }
      for (std::size_t i = 0; i < streams.size(); ++i) {
        readings[order[c + i * kClients]] = ReadAll(*streams[i]);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(running.engine->WaitIdle(absl::InfiniteFuture()));
  const absl::Status integrity = running.engine->CheckIntegrity();
  EXPECT_TRUE(integrity.ok()) << integrity;
  *stats = running.engine->GetStats();
  return readings;
}

std::vector<std::uint32_t> Bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

void ExpectSameBits(StressModel& alone, StressModel& pooled, const PooledRun& run = {}) {
  const std::vector<Request> requests = MakeRequests(alone.prompt_vocab());
  const std::vector<Reading> expected = RunAlone(alone, requests);
  EngineStats stats;
  const std::vector<Reading> got = RunPooled(pooled, requests, run, &stats);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(requests[i].id);
    ASSERT_TRUE(expected[i].status.ok()) << expected[i].status;
    ASSERT_TRUE(got[i].status.ok()) << got[i].status;
    EXPECT_EQ(got[i].order_errors, "");
    const Reading::Choice& a = expected[i].choices.at(0);
    const Reading::Choice& b = got[i].choices.at(0);
    ASSERT_EQ(a.token_ids.size(), static_cast<std::size_t>(requests[i].stopping.max_tokens));
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(Bits(a.logprobs), Bits(b.logprobs));
  }
  // The events that the pooled run must have had for the test to be meaningful.
  EXPECT_GE(stats.preemptions, 20);
  EXPECT_GE(stats.chunked_prefills, run.step_time_target == kNoTime ? 200 : 100);
  EXPECT_GE(stats.cache.hit_tokens, run.min_hit_tokens);
  EXPECT_GE(stats.max_step_sequences, 8);
  std::printf("preemptions %lld, chunked prefills %lld, hit tokens %llu, sequences in a step %d\n",
              static_cast<long long>(stats.preemptions),
              static_cast<long long>(stats.chunked_prefills),
              static_cast<unsigned long long>(stats.cache.hit_tokens), stats.max_step_sequences);
}

TEST(SameBitsTest, FakeModel) {
  const auto model = MakeFakeModel();
  ExpectSameBits(*model, *model);
}

TEST(SameBitsTest, FakeModelOverlapped) {
  const auto alone = MakeFakeModel();
  const auto pooled = MakeFakeModel(/*max_steps_in_flight=*/2);
  ExpectSameBits(*alone, *pooled);
}

TEST(SameBitsTest, FakeModelInChunksBelowAPage) {
  const auto alone = MakeFakeModel();
  const auto pooled = MakeFakeModel(/*max_steps_in_flight=*/2);
  ExpectSameBits(*alone, *pooled, {.step_time_target = kNoTime});
}

TEST(SameBitsTest, QuantizedStoryModelInChunksBelowAPage) {
  const auto alone = MakeStoryModel(1, models::Quantization::kInt8);
  const auto pooled = MakeStoryModel(3, models::Quantization::kInt8);
  ExpectSameBits(*alone, *pooled, {.step_time_target = kNoTime});
}

TEST(SameBitsTest, StoryModelOnOneThread) {
  const auto model = MakeStoryModel(1);
  ExpectSameBits(*model, *model);
}

TEST(SameBitsTest, StoryModelAloneOnOneThreadPooledOnThree) {
  const auto alone = MakeStoryModel(1);
  const auto pooled = MakeStoryModel(3);
  ExpectSameBits(*alone, *pooled);
}

// The requests outgrow the windows, over pages that others release meanwhile.
TEST(SameBitsTest, FakeModelWithWindows) {
  const std::vector<cache::CacheGroup> groups = {{.window = 24}, {.window = 0}, {.window = 40}};
  const auto alone = MakeFakeModel(1, groups);
  const auto pooled = MakeFakeModel(/*max_steps_in_flight=*/2, groups);
  ExpectSameBits(*alone, *pooled, {.usable_pages = 90, .min_hit_tokens = 16});
}

TEST(SameBitsTest, RecurrentFakeModel) {
  const auto model = MakeRecurrentFakeModel();
  ExpectSameBits(*model, *model, {.min_hit_tokens = 16});
  ExpectSameBits(*model, *model, {.step_time_target = kNoTime, .min_hit_tokens = 16});
}

TEST(SameBitsTest, QwenWithRecurrentLayers) {
  const auto alone = MakeFixtureModel("qwen35-moe-bf16", 1);
  const auto pooled = MakeFixtureModel("qwen35-moe-bf16", 3);
  ExpectSameBits(*alone, *pooled, {.min_hit_tokens = 16});
}

TEST(SameBitsTest, MistralWithWindowsInAllLayers) {
  const auto alone = MakeFixtureModel("mistral-window-bf16", 1);
  const auto pooled = MakeFixtureModel("mistral-window-bf16", 3);
  ExpectSameBits(*alone, *pooled, {.usable_pages = 26, .min_hit_tokens = 16});
}

TEST(SameBitsTest, GptOssWithWindowsInSomeLayers) {
  const auto alone = MakeFixtureModel("gpt-oss-bf16", 1);
  const auto pooled = MakeFixtureModel("gpt-oss-bf16", 3);
  ExpectSameBits(*alone, *pooled, {.usable_pages = 80, .min_hit_tokens = 16});
}

TEST(SameBitsTest, QuantizedStoryModelAloneOnOneThreadPooledOnThree) {
  const auto alone = MakeStoryModel(1, models::Quantization::kInt4G32);
  const auto pooled = MakeStoryModel(3, models::Quantization::kInt4G32);
  ExpectSameBits(*alone, *pooled);
}

}  // namespace
}  // namespace quire::engine
