#pragma once

// Plans the memory of a device from a configuration. The daemon and `quire plan`, which needs no
// GPU, use the same plan.
//
// Place:      between RuntimeOptions and memory_plan.h.
// Invariants: nothing is loaded; the daemon allocates exactly what a plan contains.
// Threads:    any.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "cache_manager/pool/page_demand.h"
#include "cache_manager/views/kv_params.h"
#include "formats/model_files.h"
#include "kernels/cuda/context.h"
#include "models/blocks/layer_groups.h"
#include "models/config/layer_spec.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/runner_options.h"
#include "runtime/runtime_options.h"
#include "runtime/state_plan.h"

namespace quire::runtime {

struct DevicePlan {
  DeviceMemoryPlan memory;         // its limit is free_bytes - reserve_bytes
  std::int64_t free_bytes = 0;     // free GPU memory before anything is loaded
  std::int64_t reserve_bytes = 0;  // device.reserve_bytes; 0 if kv_cache.capacity_bytes is set
  std::uint32_t page_size = 0;
  DType kv_dtype = DType::kInvalid;
  std::int32_t context_tokens = 0;   // longest sequence
  std::uint32_t sequence_pages = 0;  // maximum number of pages that this sequence holds at a time
  bool context_was_cut = false;      // the pool does not hold the requested context
  RunnerOptions runner;              // the caller sets has_text
  StatePlan states;                  // its slots are part of `memory`
};

// Plans a GPU with `free_bytes` of free memory and `num_sms` multiprocessors. If weights, workspace
// and the smallest pool do not fit, returns RESOURCE_EXHAUSTED with the size of every part in the
// message. If options contradict each other or the model, returns INVALID_ARGUMENT with the key.
// Also returns the errors of PlanDeviceMemory. REQUIRES: options.steps were computed for a GPU.
absl::StatusOr<DevicePlan> PlanDevice(const RuntimeOptions& options,
                                      const formats::ModelFiles& files, std::int64_t free_bytes,
                                      std::uint32_t num_sms);

struct CpuPlan {
  MemoryPlan memory;
  // Longest sequence. If kv_cache.capacity_bytes is not set, the final pool may limit it further.
  std::int32_t context_tokens = 0;
  std::uint32_t sequence_pages = 0;  // maximum number of pages that this sequence holds at a time
  // State slots of the pool. If kv_cache.capacity_bytes is not set and the weights exceed the free
  // memory, the plan assumes a pool that fits max_rows sequences and 2 snapshots.
  StatePlan states;
};

// The planned pool of a host.
struct CpuPool {
  cache::KvGeometry geometry;
  models::LayerGroups layers;
  StatePlan states;                        // its slots are part of the pool's memory
  std::int32_t context_tokens = 0;         // longest sequence
  std::int32_t wanted_context_tokens = 0;  // longest sequence without the limit of the pool
};

// Plans the pool of a host with `free_bytes` of free memory after weights are loaded. The pool uses
// kv_cache.capacity_bytes. If that key is not set, the pool and its prefix index together use
// device.cpu.kv_memory_share of the free memory. The slots of recurrent states are part of the
// pool. Returns RESOURCE_EXHAUSTED if fewer than two pages fit, the errors of PlanStateSlots, and
// INVALID_ARGUMENT in the same cases as PlanDevice.
absl::StatusOr<CpuPool> PlanCpuPool(const RuntimeOptions& options, const models::ModelSpec& spec,
                                    std::int64_t free_bytes);

// Plans the CPU with the pages of kv_cache.capacity_bytes. Without that key, the plan has the null
// page and one more page, because the daemon sizes the pool after loading the weights. `free_bytes`
// is the free memory before loading. Returns INVALID_ARGUMENT in the same cases as PlanDevice. For
// a model with recurrent layers also returns the errors of PlanCpuPool, unless the weights alone
// exceed the free memory.
absl::StatusOr<CpuPlan> PlanCpu(const RuntimeOptions& options, const formats::ModelFiles& files,
                                std::int64_t free_bytes);

// Returns each use of GPU memory with its bytes, then "total", "reserve" and "free". The last
// entries, "pinned" and "prefix_index", are host memory. Without recurrent layers there is no entry
// "states".
std::vector<std::pair<std::string, std::int64_t>> PlanLines(const DevicePlan& plan);

// Returns the options of a runner on either device. The caller sets the options that depend on the
// tokenizer, the state slots, or a GPU.
RunnerOptions RunnerOptionsFor(const RuntimeOptions& options, std::int32_t context_tokens);

LoadMode LoadModeOf(const ModelOptions& options);

// Returns the value of the key engine.determinism.
kernels::Determinism DeterminismOf(const DeviceOptions& options);

// Returns the type of activations on a GPU: model.dtype, or the type that matches the pages.
DType CudaActivationType(const RuntimeOptions& options);

// Returns INVALID_ARGUMENT if a pool does not hold a prompt of one token and one generated token.
absl::Status CheckSmallestRequestFits(const RuntimeOptions& options,
                                      const cache::PageDemand& demand, std::uint32_t num_blocks);

// Returns the length of the longest sequence that `usable_pages` hold, at most `max_tokens`.
std::int32_t LongestSequence(const cache::PageDemand& demand, std::uint32_t usable_pages,
                             std::int32_t max_tokens);

}  // namespace quire::runtime
