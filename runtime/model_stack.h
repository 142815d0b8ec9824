#pragma once

// Builds, from a model's files, everything that a step needs: weights, tokenizer, page pool, runner
// and cache manager.
//
//   CPU   open the tokenizer, check the plan, load the weights, plan the pages, create the pool,
//         the runner and the cache manager, compute one token
//   GPU   open the tokenizer, plan all memory (an error if it does not fit), load the weights,
//         create the pool and the runner, run the self-check, create the cache manager, run the
//         first steps (first_steps.h)
//
// Place:      above ComputeDevice, the plans (device_plan.h, memory_plan.h, state_plan.h) and
//             the runners; below the engine, which gets the parts.
// Invariants: members are declared after the members that they use, so destruction is safe.
// Threads:    one thread calls Build. Each part documents its own rules.
// Lifetime:   must outlive the engine.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "formats/model_files.h"
#include "kernels/backend/kernel_check.h"
#include "models/blocks/layer_groups.h"
#include "runtime/compute_device.h"
#include "runtime/device_plan.h"
#include "runtime/model.h"
#include "runtime/runtime_options.h"
#include "runtime/state_plan.h"
#include "runtime/step/step_runner.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::runtime {

class CudaRunner;
struct FirstSteps;

// The durations of reading the weights and of opening the tokenizer.
struct LoadTimes {
  absl::Duration read, tokenizer;
};

// A planned use of memory for the lifetime of the model.
struct MemoryUse {
  std::string kind;  // "weights"
  std::int64_t bytes = 0;
  bool on_host = false;  // host memory of a model that runs on a GPU
};

class ModelStack {
 public:
  // `files` are the files of options.model.path. options.steps must have been computed for
  // `device`. Errors name either the file, or the key with its value and its limit. On a GPU, Build
  // also returns the errors of the self-check. If `checks` is not null, it receives the comparisons
  // of the self-check, even if one failed.
  static absl::StatusOr<std::unique_ptr<ModelStack>> Build(
      const RuntimeOptions& options, const formats::ModelFiles& files,
      std::unique_ptr<ComputeDevice> device, std::vector<kernels::KernelCheck>* checks = nullptr);

  const ComputeDevice& device() const { return *device_; }
  // Describes the device and its self-check.
  DeviceDescription DescribeDevice() const;
  const Model& model() const { return *model_; }
  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  // Maximum number of tokens of a sequence.
  std::int32_t context_tokens() const { return context_tokens_; }
  // Maximum number of sequences that run at a time. It is lower than options.steps.max_rows if
  // options.steps.may_lower_rows is set and the recurrent states of options.steps.max_rows
  // sequences do not fit.
  std::uint32_t max_rows() const { return max_rows_; }
  DType activation() const { return activation_; }
  const models::LayerGroups& layers() const { return layers_; }
  const cache::KvPool& pool() const { return *pool_; }
  StepRunner* runner() const { return runner_.get(); }
  // Returns the cache manager, which the first steps (first_steps.h) have already used. Call once.
  std::unique_ptr<cache::CacheManager> TakeCache() { return std::move(cache_); }

  const LoadTimes& load_times() const { return load_times_; }
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  const std::vector<MemoryUse>& memory() const { return memory_; }

 private:
  ModelStack() = default;

  absl::Status LoadWeights(const RuntimeOptions& options, const formats::ModelFiles& files,
                           std::int64_t weight_limit_bytes);
  // Prepare weights, pool and runner.
  absl::Status PrepareCpu(const RuntimeOptions& options, const formats::ModelFiles& files);
  absl::Status PrepareCuda(const RuntimeOptions& options, const formats::ModelFiles& files,
                           std::vector<kernels::KernelCheck>* checks);
  absl::Status CheckKernels(std::vector<kernels::KernelCheck>* checks);
  absl::Status RunFirstSteps(const RuntimeOptions& options,
                             std::vector<kernels::KernelCheck>* checks);
  // Runs and compares the first steps on a GPU. Errors have the form that CheckError describes,
  // except for logits that are not finite.
  absl::Status CompareFirstSteps(const FirstSteps& steps,
                                 std::vector<kernels::KernelCheck>* compared);
  cache::CacheManagerOptions CacheOptionsFor(const RuntimeOptions& options) const;

  LoadTimes load_times_;
  SelfCheck self_check_;  // set only on a GPU
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::int32_t context_tokens_ = 0;
  std::uint32_t max_rows_ = 0;
  DType activation_ = DType::kF32;
  models::LayerGroups layers_;
  StatePlan states_;  // no slots if the model has no recurrent layers
  std::optional<cache::KvPool> pool_;
  std::unique_ptr<StepRunner> runner_;
  CudaRunner* cuda_runner_ = nullptr;  // runner_ on a GPU, else null
  std::unique_ptr<cache::CacheManager> cache_;
  std::int64_t workspace_bytes_ = 0;
  std::vector<MemoryUse> memory_;
};

absl::StatusOr<std::unique_ptr<text::Tokenizer>> OpenTokenizer(const ModelOptions& options,
                                                               const formats::ModelFiles& files);

// Checks, without loading anything, that the weights and the pages of `options` fit. For a GPU, the
// memory plan is checked only if the GPU is present; otherwise returns OK. Returns the errors of
// Build, and INVALID_ARGUMENT if the weights exceed the free memory of the CPU backend.
absl::Status CheckPlan(const RuntimeOptions& options, const formats::ModelFiles& files,
                       const CheckedSpec& model, DeviceKind device);

}  // namespace quire::runtime
