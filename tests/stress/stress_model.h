#pragma once

// Models of the stress tests, and the fake runner as such a model. real_model.h has real ones.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "engine/engine.h"
#include "runtime/step/step_runner.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

struct StressPool {
  std::uint32_t usable_pages = 64;
  std::uint32_t max_rows = 16;
  std::uint32_t max_context_tokens = 512;
  bool prefix_caching = true;
  std::uint32_t snapshots = 2;  // state slots besides those of the rows, for recurrent layers
};
inline constexpr std::uint32_t kStressPageSize = 16;
inline constexpr std::uint32_t kStressChunkTokens = 16;

// Everything an engine needs. The engine must be destroyed first.
class StressModel {
 public:
  virtual ~StressModel() = default;
  virtual std::unique_ptr<runtime::StepRunner> MakeRunner(const StressPool& pool) = 0;
  virtual std::unique_ptr<cache::CacheManager> MakeCacheManager(const StressPool& pool) = 0;
  virtual EngineOptions Options(const StressPool& pool) const = 0;
  virtual const text::Tokenizer& tokenizer() const = 0;
  // Prompt tokens are sampled from [0, prompt_vocab()).
  virtual std::int32_t prompt_vocab() const = 0;
};

std::unique_ptr<StressModel> MakeFakeModel(int max_steps_in_flight = 1,
                                           std::vector<cache::CacheGroup> groups = {
                                               cache::CacheGroup{}});
// The fake runner with a recurrent layer besides.
std::unique_ptr<StressModel> MakeRecurrentFakeModel();
// Sets options common to all models: step sizes and threads.
void SetCommonOptions(EngineOptions& options);

// Calls a function before each step.
class HookedRunner : public runtime::StepRunner {
 public:
  HookedRunner(runtime::StepRunner* runner, std::function<void()> hook)
      : runner_(runner), hook_(std::move(hook)) {}
  absl::Status Run(const runtime::StepBatch& batch) override {
    hook_();
    return runner_->Run(batch);
  }
  void SampleLate(const runtime::StepBatch& batch) override { runner_->SampleLate(batch); }
  absl::StatusOr<const runtime::StepResult*> Collect() override { return runner_->Collect(); }
  int max_steps_in_flight() const override { return runner_->max_steps_in_flight(); }

 private:
  runtime::StepRunner* const runner_;
  const std::function<void()> hook_;
};

}  // namespace quire::engine
