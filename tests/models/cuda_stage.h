#pragma once

// A model with its runner on the CPU or on an emulated GPU, for tests of runners.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "models/blocks/layer_groups.h"
#include "runtime/cpu_runner.h"
#include "runtime/cuda_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"

namespace quire::models {

inline constexpr std::uint32_t kRows = 4;
inline constexpr std::uint32_t kStepTokens = 64;
inline constexpr std::uint32_t kBlocks = 64;
inline constexpr std::uint32_t kPageSize = 16;

inline runtime::RunnerOptions Options(DType activation, std::uint32_t num_state_slots = 0) {
  return {.max_rows = kRows,
          .max_step_tokens = kStepTokens,
          .max_logprobs = 5,
          .num_state_slots = num_state_slots,
          .activation = activation};
}

// A model on one device with a cache manager, as in the engine.
class Stage {
 public:
  explicit Stage(bool cuda, DType dtype = DType::kF32, int threads = 1)
      : threads_(threads), dtype_(dtype) {
    if (cuda) {
      stream_.emplace(*Stream::Create(*OpenCudaDevice(0)));
      backend_.emplace(*kernels::Backend::CreateCuda(
          *stream_, kernels::Determinism::kBatchInvariant, &threads_));
    } else {
      backend_.emplace(
          *kernels::Backend::Create(Device::Cpu(), &threads_, kernels::CpuActivations::kInt8));
    }
  }

  absl::Status Load(const formats::ModelFiles& files,
                    runtime::LoadMode mode = runtime::LoadMode::kReal,
                    Quantization quantization = Quantization::kAuto) {
    QUIRE_ASSIGN_OR_RETURN(
        model_,
        runtime::LoadModel(files, *backend_,
                           {.mode = mode, .activation = dtype_, .quantization = quantization}));
    return absl::OkStatus();
  }

  absl::Status MakePool(std::uint32_t max_rows = kRows, std::uint32_t num_state_slots = 0) {
    QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                           runtime::KvGeometryFor(model_->spec, kPageSize, dtype_, kBlocks));
    QUIRE_ASSIGN_OR_RETURN(
        cache::KvPool pool,
        cache::KvPool::Create(geometry,
                              {.guard_canary = true, .stream = stream_ ? &*stream_ : nullptr}));
    pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    QUIRE_ASSIGN_OR_RETURN(
        cache_, cache::CacheManager::Create({.geometry = geometry,
                                             .groups = CacheGroupsOf(PlanLayerGroups(model_->spec)),
                                             .max_rows = max_rows,
                                             .max_context_tokens = model_->spec.max_position,
                                             .max_row_overlap_tokens = kStepTokens,
                                             .num_state_slots = num_state_slots}));
    return absl::OkStatus();
  }

  absl::Status MakeRunner(runtime::RunnerOptions options) {
    if (!stream_) {
      QUIRE_ASSIGN_OR_RETURN(runner_,
                             runtime::CpuRunner::Create(*model_, *backend_, pool_.get(), options));
      return absl::OkStatus();
    }
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runtime::CudaRunner> runner,
                           runtime::CudaRunner::Create(*model_, *backend_, pool_.get(), options));
    cuda_ = runner.get();
    runner_ = std::move(runner);
    return absl::OkStatus();
  }

  absl::Status Start(const formats::ModelFiles& files,
                     runtime::LoadMode mode = runtime::LoadMode::kReal) {
    QUIRE_RETURN_IF_ERROR(Load(files, mode));
    QUIRE_RETURN_IF_ERROR(MakePool());
    return MakeRunner(Options(dtype_));
  }

  // Continues row `row` with tokens [cached, cached + count) of `tokens`. The first `prompt` tokens
  // are the prompt. Samples greedily once, after the last token.
  absl::Status Launch(std::uint32_t row, const std::vector<std::int32_t>& tokens,
                      std::uint32_t cached, std::uint32_t count, std::uint32_t prompt) {
    QUIRE_RETURN_IF_ERROR(cache_->Reserve(BatchRow{row}, cached + count));
    batch_.Clear();
    for (std::uint32_t i = 0; i < count; ++i) batch_.token_ids.push_back(tokens[cached + i]);
    batch_.rows.push_back({.batch_row = BatchRow{row},
                           .cache_length = cached,
                           .num_tokens = count,
                           .prompt_tokens = std::min(count, prompt - std::min(prompt, cached))});
    batch_.logits_tokens.push_back(count - 1);
    batch_.logits_out = logits_out;
    kernels::SamplingRow greedy{};
    greedy.temperature = 0;
    batch_.samples.push_back({0, greedy});
    const cache::RowStep step{BatchRow{row}, cached, count};
    batch_.kv = cache_->PrepareStep({&step, 1});
    batch_.copies = cache_->TakeCopies();
    batch_.clears = cache_->TakeClears();
    batch_.states = cache_->state_inputs();
    QUIRE_RETURN_IF_ERROR(runner_->Run(batch_));
    cache_->CompleteStep();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::int32_t>> Generate(std::uint32_t row,
                                                     std::vector<std::int32_t> tokens,
                                                     std::size_t count) {
    const auto prompt = static_cast<std::uint32_t>(tokens.size());
    std::uint32_t cached = 0;
    std::vector<std::int32_t> sampled;
    while (sampled.size() < count) {
      const auto fresh =
          std::min<std::uint32_t>(kStepTokens, static_cast<std::uint32_t>(tokens.size()) - cached);
      QUIRE_RETURN_IF_ERROR(Launch(row, tokens, cached, fresh, prompt));
      QUIRE_ASSIGN_OR_RETURN(const runtime::StepResult* result, runner_->Collect());
      cached += fresh;
      if (cached < tokens.size()) continue;
      tokens.push_back(result->samples[0].token);
      sampled.push_back(result->samples[0].token);
    }
    return sampled;
  }

  // Destination of the logits of every step. Null discards them.
  float* logits_out = nullptr;

  const runtime::Model& model() const { return *model_; }
  runtime::StepRunner& runner() { return *runner_; }
  const runtime::CudaRunner& cuda() const { return *cuda_; }
  cache::KvPool& pool() { return *pool_; }
  cache::CacheManager& cache() { return *cache_; }
  const kernels::Backend& backend() const { return *backend_; }

 private:
  ThreadPool threads_;
  const DType dtype_;
  std::optional<Stream> stream_;
  std::optional<kernels::Backend> backend_;
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<cache::CacheManager> cache_;
  std::unique_ptr<runtime::StepRunner> runner_;
  const runtime::CudaRunner* cuda_ = nullptr;
  runtime::StepBatch batch_;
};

}  // namespace quire::models
