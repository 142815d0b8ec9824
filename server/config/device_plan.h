#pragma once

// What a configuration makes of a GPU's memory: the same sums for the daemon and for `quire plan`,
// which needs no GPU.
//
// Place:      between DaemonOptions and runtime/memory_plan.h.
// Invariants: nothing is loaded; what it returns is what the daemon allocates.
// Threads:    any.
// Lifetime:   values.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/dtype.h"
#include "cache_manager/pool/page_demand.h"
#include "models/blocks/layer_groups.h"
#include "models/config/model_config.h"
#include "runtime/memory_plan.h"
#include "server/config/options.h"

namespace quire::server {

struct DevicePlan {
  models::DeviceMemoryPlan memory;  // its limit is the memory beyond the reserve
  std::int64_t free_bytes = 0;      // of the GPU, before anything is loaded
  std::int64_t reserve_bytes = 0;   // device.reserve_bytes; 0 when kv_cache.capacity_bytes is set
  std::uint32_t page_size = 0;
  DType kv_dtype = DType::kInvalid;
  std::int32_t context_tokens = 0;   // longest sequence
  std::uint32_t sequence_pages = 0;  // most that it has at a time
  bool context_was_cut = false;      // to what the pool holds
  models::RunnerOptions runner;      // has_text is the caller's to fill in
};

// Plans a GPU of which `free_bytes` are unused. `num_sms`: its multiprocessors. Returns
// RESOURCE_EXHAUSTED, with every part, when weights, workspace and the smallest pool do not fit;
// INVALID_ARGUMENT that names the key when options contradict each other or the model; what
// models::PlanDeviceMemory returns otherwise.
absl::StatusOr<DevicePlan> PlanDevice(const DaemonOptions& options,
                                      const models::ModelFiles& files, std::int64_t free_bytes,
                                      std::uint32_t num_sms);

struct CpuPlan {
  models::MemoryPlan memory;
  std::int32_t context_tokens = 0;   // longest sequence, if the pool holds it
  std::uint32_t sequence_pages = 0;  // most that it has at a time
};

// The same for the CPU, with as many pages as kv_cache.capacity_bytes holds; without that key the
// null page and one more, since the rest depends on the memory that is free at start. Returns
// INVALID_ARGUMENT as PlanDevice.
absl::StatusOr<CpuPlan> PlanCpu(const DaemonOptions& options, const models::ModelFiles& files);

// Each use of the GPU's memory with its bytes, then "total", "reserve", "free" and, on the host,
// "pinned".
std::vector<std::pair<std::string, std::int64_t>> PlanLines(const DevicePlan& plan);

// model.max_context_tokens, or the model's own context. Returns INVALID_ARGUMENT when the first is
// larger.
absl::StatusOr<std::int32_t> ContextTokens(const ModelOptions& options, std::int32_t own);

// Returns INVALID_ARGUMENT when model.max_context_tokens is more than the longest sequence that a
// pool holds.
absl::Status CheckContextFits(const ModelOptions& options, std::int64_t longest);

// Type of the activations on a GPU: model.dtype, or what goes with the pages.
DType CudaActivationType(const DaemonOptions& options);

// Most tokens of one step: one of each running sequence and the prompt tokens of their cap.
std::int32_t StepTokens(const engine::EngineOptions& engine, std::int32_t page_size);

// What the engine of a GPU is given: nothing bounds the prompt tokens of a step but its own size.
engine::EngineOptions GpuEngineOptions(engine::EngineOptions engine);

// Most prompt tokens that one sequence has in steps under way.
std::uint32_t OverlapTokens(const DaemonOptions& options, DeviceKind device);

// What a sequence asks of a pool with these layer groups: less than its tokens where windows let
// pages go.
cache::PageDemand PageDemandFor(const DaemonOptions& options, const models::LayerGroups& layers,
                                DeviceKind device);

// Returns INVALID_ARGUMENT when a pool does not hold a prompt of one token and its answer.
absl::Status CheckHoldsAnything(const DaemonOptions& options, const cache::PageDemand& demand,
                                std::uint32_t num_blocks);

// Tokens of the longest sequence, of at most `most`, that so many pages hold.
std::int32_t LongestSequence(const cache::PageDemand& demand, std::uint32_t usable_pages,
                             std::int32_t most);

// Pages, the null page included, of the whole histories of max_running_sequences sequences of this
// context, those that windows have let go included. An automatic pool takes no more, although more
// could keep more prefixes.
std::int64_t UsefulBlocks(const DaemonOptions& options, const cache::PageDemand& demand,
                          std::int32_t context_tokens);

}  // namespace quire::server
