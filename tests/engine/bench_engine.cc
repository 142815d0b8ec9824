// What the engine itself costs a step: the device is null, every sample is the same token. One
// iteration serves `rows` requests of 512 tokens; `step` is the time of one step, of which a
// device's time would be added to or overlapped with.

#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kTokens = 512;

class NullRunner final : public models::StepRunner {
 public:
  explicit NullRunner(int max_steps_in_flight) : max_steps_in_flight_(max_steps_in_flight) {}

  absl::Status Run(const models::StepBatch& batch) override {
    num_samples_[(launched_++) % 2] = batch.samples.size();
    return absl::OkStatus();
  }
  absl::StatusOr<const models::StepResult*> Collect() override {
    models::StepToken token;
    token.token = 'a';
    result_.samples.assign(num_samples_[(collected_++) % 2], token);
    return &result_;
  }
  int max_steps_in_flight() const override { return max_steps_in_flight_; }

 private:
  const int max_steps_in_flight_;
  std::size_t num_samples_[2] = {};
  std::size_t launched_ = 0, collected_ = 0;
  models::StepResult result_;
};

// Read by the output worker itself, as fast as it writes.
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
    ->ArgsProduct({{1, 8, 64}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace quire::engine

BENCHMARK_MAIN();
