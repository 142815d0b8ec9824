// Measures the engine's own cost per step. The device does nothing and every sample is the same
// token. One iteration serves `rows` requests of 512 tokens. `step` is the time of one step, to
// which a device's time would be added or overlapped.

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/masks/repeat_penalty.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kTokens = 512;

class NullRunner final : public runtime::StepRunner {
 public:
  explicit NullRunner(int max_steps_in_flight) : max_steps_in_flight_(max_steps_in_flight) {}

  absl::Status Run(const runtime::StepBatch& batch) override {
    num_samples_[(launched_++) % 2] = batch.samples.size();
    return absl::OkStatus();
  }
  void SampleLate(const runtime::StepBatch&) override {}
  absl::StatusOr<const runtime::StepResult*> Collect() override {
    runtime::StepToken token;
    token.token = 'a';
    result_.samples.assign(num_samples_[(collected_++) % 2], token);
    return &result_;
  }
  int max_steps_in_flight() const override { return max_steps_in_flight_; }

 private:
  const int max_steps_in_flight_;
  std::size_t num_samples_[2] = {};
  std::size_t launched_ = 0, collected_ = 0;
  runtime::StepResult result_;
};

// The output worker itself reads the stream as fast as it is written.
std::shared_ptr<TokenStream> Start(Engine& engine, const std::string& id,
                                   std::atomic<std::int64_t>* num_finished) {
  auto stream = engine.Accept(MakeRequest(id, MakePrompt(1, 32), kTokens));
  const std::shared_ptr<TokenStream> reader = *std::move(stream);
  const auto was_finished = std::make_shared<std::atomic<bool>>(false);
  reader->SetReadyCallback([raw = reader.get(), was_finished, num_finished] {
    while (raw->Take().has_value()) {
    }
    if (raw->finished() && !was_finished->exchange(true)) num_finished->fetch_add(1);
  });
  return reader;
}

void BM_EngineStep(benchmark::State& state) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  PoolOptions pool;
  pool.usable_pages = rows * (kTokens + 64) / 16;
  pool.max_rows = rows;
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  NullRunner runner(static_cast<int>(state.range(1)));
  const MachineClock clock;
  auto engine = Engine::Create(MakeOptions(pool), MakeCache(pool), &runner, tokenizer.get(), &clock,
                               /*metrics=*/nullptr);
  const std::int64_t steps_before = (*engine)->GetStats().steps;
  int round = 0;
  for (auto _ : state) {
    std::atomic<std::int64_t> num_finished = 0;
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (std::uint32_t i = 0; i < rows; ++i) {
      streams.push_back(Start(**engine, absl::StrCat(round, "/", i), &num_finished));
    }
    (*engine)->WaitIdle(clock.Now() + absl::Seconds(60));
    while (num_finished.load() < rows) {
    }
    ++round;
  }
  const auto steps = static_cast<double>((*engine)->GetStats().steps - steps_before);
  state.counters["step"] =
      benchmark::Counter(steps, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_EngineStep)
    ->ArgNames({"rows", "in_flight"})
    ->ArgsProduct({{1, 8, 32, 64}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Work of a mask thread for one token with DRY. Of `context` tokens the last `period` repeat (with
// period 1 every position of the window matches), or all are random (period 0).
void BM_RepeatPenalty(benchmark::State& state) {
  constexpr std::size_t kVocab = 32000;
  const auto context = static_cast<std::size_t>(state.range(0));
  const auto period = static_cast<std::size_t>(state.range(1));
  const auto texts = std::make_shared<const TokenTexts>(std::vector<std::string>(kVocab, "x"));
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens;
  while (tokens.size() < 2 * context) {
    tokens.push_back(
        static_cast<std::int32_t>(period == 0 ? random() % kVocab : tokens.size() % period));
  }
  const DryParams params{.multiplier = 1};
  const auto prompt = std::span(tokens).first(context);
  RepeatPenalty repeats(params, texts, prompt);
  std::size_t at = context;
  for (auto _ : state) {
    if (at == tokens.size()) {
      state.PauseTiming();
      repeats = RepeatPenalty(params, texts, prompt);
      at = context;
      state.ResumeTiming();
    }
    repeats.Append(tokens[at++]);
    benchmark::DoNotOptimize(repeats.Penalties().data());
  }
}
BENCHMARK(BM_RepeatPenalty)
    ->ArgNames({"context", "period"})
    ->ArgsProduct({{1000, 100000}, {0, 1, 2, 1000}})
    ->Unit(benchmark::kMicrosecond);

// The same for a prompt, which a text worker processes.
void BM_RepeatPenaltyOfPrompt(benchmark::State& state) {
  const auto texts = std::make_shared<const TokenTexts>(std::vector<std::string>(1, "x"));
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(state.range(0)), 0);
  for (auto _ : state) {
    RepeatPenalty repeats({.multiplier = 1}, texts, tokens);
    benchmark::DoNotOptimize(repeats.Penalties().data());
  }
}
BENCHMARK(BM_RepeatPenaltyOfPrompt)->Arg(1000)->Arg(100000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire::engine

BENCHMARK_MAIN();
