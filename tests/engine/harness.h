#pragma once

// Shared helpers of the engine tests: a byte-level tokenizer, a pool, requests, and an EngineCore
// that a test drives step by step.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache_manager/cache_manager.h"
#include "engine/output/token_stream.h"
#include "engine/request/text_stage.h"
#include "engine/step/engine_core.h"
#include "tests/engine/fake_runner.h"
#include "tests/testing/fake_clock.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// Ids 0..255 are the bytes, 256 is "<eos>", 257 "<bos>", 258 "<poison>", all three special.
inline constexpr std::int32_t kByteVocab = 259;
inline constexpr std::int32_t kEosToken = 256;
inline constexpr std::int32_t kPoisonToken = 258;
std::unique_ptr<text::Tokenizer> MakeByteTokenizer();

struct PoolOptions {
  std::uint32_t usable_pages = 64;
  std::uint32_t page_size = 16;
  std::uint32_t max_rows = 64;
  std::uint32_t max_context_tokens = 1024;
  std::vector<cache::CacheGroup> groups = {cache::CacheGroup{}};
  std::uint32_t max_row_overlap_tokens = 0;
  std::uint32_t snapshots = 0;  // state slots besides those of the rows; 0: no recurrent layers
  std::uint32_t state_interval_tokens = 0;
  std::uint32_t num_state_slots() const { return snapshots == 0 ? 0 : 1 + max_rows + snapshots; }
};
std::unique_ptr<cache::CacheManager> MakeCache(const PoolOptions& options);

// Returns options for a pool, with the byte tokenizer's vocabulary, no prompt limit and no target
// of the step time.
EngineOptions MakeOptions(const PoolOptions& pool);

Request MakeRequest(std::string id, std::vector<std::int32_t> prompt, std::int32_t max_tokens);
// Returns `length` tokens below 256. They are a function of `seed`.
std::vector<std::int32_t> MakePrompt(std::uint64_t seed, std::size_t length);

// Returns the value of a series in the exposition, such as
// `quire_requests_waiting{model_name="m"}`, or 0 if it is absent.
double MetricValue(const probe::Registry& registry, const std::string& series);
// Returns the sum over all series of a family.
double MetricSum(const probe::Registry& registry, const std::string& family);

struct HarnessOptions {
  PoolOptions pool;
  EngineOptions engine;
  FakeRunnerOptions runner;
};
HarnessOptions MakeHarnessOptions(const PoolOptions& pool, int max_steps_in_flight = 1);

// Prepares requests synchronously and records items instead of writing them to streams.
class Harness {
 public:
  struct Output {
    std::map<std::int32_t, std::vector<std::int32_t>> tokens;  // by choice
    std::map<std::int32_t, std::vector<float>> logprobs;
    std::map<std::int32_t, FinishReason> finish;
    std::vector<std::int32_t> prompt_positions;  // of prompt log-probabilities, in order
    std::vector<float> prompt_logprobs;
    std::vector<float> pooled;
    bool started = false;
    bool ended = false;
    absl::Status status;
    std::int32_t cached_tokens = 0;
  };

  explicit Harness(const HarnessOptions& options);

  std::shared_ptr<AcceptedRequest> Submit(Request request);
  // Processes the arrival only. The request stays in PREPARING.
  std::shared_ptr<AcceptedRequest> Arrive(Request request);
  void Prepare(const std::shared_ptr<AcceptedRequest>& live);
  void Cancel(const std::shared_ptr<AcceptedRequest>& live, CancelSource source);
  // Expires deadlines, runs one step and checks the integrity of everything.
  bool Step();
  void RunUntilIdle();
  // Collects the steps in flight.
  void Settle();
  // The coming steps use `options`, as changed by the test.
  void ApplyOptions() { core.SetHotOptions(std::make_shared<const HotOptions>(options)); }
  const Output& output(const std::string& id) { return outputs_[id]; }
  const std::map<std::string, Output>& outputs() const { return outputs_; }

  // The compiled constraint of a request, which is built synchronously.
  std::function<std::shared_ptr<const CompiledConstraint>(const ConstraintSpec&)> compile;

  std::unique_ptr<cache::CacheManager> cache;
  FakeRunner runner;
  testing::FakeClock clock;
  std::unique_ptr<text::Tokenizer> tokenizer;
  EngineOptions options;
  probe::Registry registry;
  EngineProbe probe;
  AdmissionLimiter limiter;
  EngineCore core;

 private:
  void TakeItems();

  std::uint64_t next_arrival_ = 1;
  std::vector<OutputItem> items_;
  std::map<std::string, Output> outputs_;
};

}  // namespace quire::engine
