#pragma once

// Everything between a model's files and a running engine: weights, tokenizer, page pool, runner,
// engine.
//
//   CPU   open, load, plan, pool, runner, one token, engine
//   GPU   open, plan (all of it, and refuse), load, pool, runner, one token, engine
//
// Place:      built by the daemon once.
// Invariants: members are declared in the order in which they need each other, so destruction is
//             safe.
// Threads:    Build from one thread; what it returns is used as its parts say.
// Lifetime:   `metrics` and `clock` outlive it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/thread_pool.h"
#include "cache_manager/pool/kv_pool.h"
#include "engine/engine.h"
#include "models/blocks/layer_groups.h"
#include "runtime/model.h"
#include "runtime/step_runner.h"
#include "server/api/serving_state.h"
#include "server/compute_device.h"
#include "server/config/device_plan.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {

// How long the parts of loading took.
struct LoadTimes {
  absl::Duration read, tokenizer;
};

class ModelStack {
 public:
  // Errors name the file or the key, its value and the limit.
  static absl::StatusOr<std::unique_ptr<ModelStack>> Build(const DaemonOptions& options,
                                                           const Clock* clock,
                                                           probe::Registry* metrics);

  // Takes the hot keys of `live` from now on, those in effect first. INVALID_ARGUMENT when they
  // cannot be served, which is possible when they changed since Build had its options. `live` may
  // reload as long as the stack lives.
  absl::Status Follow(LiveConfig* live);

  const ServedModel& served() const { return *served_; }
  const LoadTimes& load_times() const { return load_times_; }
  // Uses and bytes of the device's memory, in order.
  const std::vector<std::pair<std::string, std::int64_t>>& memory() const { return memory_; }

 private:
  ModelStack() = default;

  absl::Status LoadTokenizer(const DaemonOptions& options, const models::ModelFiles& files);
  absl::Status LoadWeights(const DaemonOptions& options, const models::ModelFiles& files,
                           std::int64_t weight_limit_bytes);
  // Weights, pool and runner.
  absl::Status PrepareCpu(const DaemonOptions& options, const models::ModelFiles& files);
  absl::Status PrepareCuda(const DaemonOptions& options, const models::ModelFiles& files);
  absl::StatusOr<cache::KvGeometry> PlanCpuPool(const DaemonOptions& options);
  engine::EngineOptions EngineOptionsFor(const DaemonOptions& options) const;
  absl::Status StartEngine(const DaemonOptions& options, const Clock* clock,
                           probe::Registry* metrics);
  absl::StatusOr<TranslatorOptions> TranslationFor(const DaemonOptions& options) const;
  absl::Status Describe(const DaemonOptions& options);

  LoadTimes load_times_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<ComputeDevice> device_;
  std::unique_ptr<models::Model> model_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::int32_t context_tokens_ = 0;
  models::LayerGroups layers_;
  std::optional<cache::KvPool> pool_;
  std::unique_ptr<models::StepRunner> runner_;
  std::int64_t workspace_bytes_ = 0;
  std::vector<std::pair<std::string, std::int64_t>> memory_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ServedModel> served_;
};

// What --validate does beyond the configuration itself: the model's config.json and tokenizer
// parse, and a pool of pages fits. Loads no weights.
absl::Status ValidateModel(const DaemonOptions& options);

// The served name: model.id, else the name of the directory, else "story" for the embedded model.
std::string ServedModelId(const ModelOptions& options);

}  // namespace quire::server
