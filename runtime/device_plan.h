#pragma once

// What a configuration makes of a device's memory: the same sums for the daemon and for `quire
// plan`, which needs no GPU.
//
// Place:      between RuntimeOptions and memory_plan.h.
// Invariants: nothing is loaded; what it returns is what the daemon allocates.
// Threads:    any.
// Lifetime:   values.

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

namespace quire::runtime {

struct DevicePlan {
  DeviceMemoryPlan memory;         // its limit is the memory beyond the reserve
  std::int64_t free_bytes = 0;     // of the GPU, before anything is loaded
  std::int64_t reserve_bytes = 0;  // device.reserve_bytes; 0 when kv_cache.capacity_bytes is set
  std::uint32_t page_size = 0;
  DType kv_dtype = DType::kInvalid;
  std::int32_t context_tokens = 0;   // longest sequence
  std::uint32_t sequence_pages = 0;  // most that it has at a time
  bool context_was_cut = false;      // to what the pool holds
  RunnerOptions runner;              // has_text is the caller's to fill in
};

// Plans a GPU of which `free_bytes` are unused; options.steps are those of a GPU. `num_sms`: its
// multiprocessors. Returns RESOURCE_EXHAUSTED, with every part, when weights, workspace and the
// smallest pool do not fit; INVALID_ARGUMENT that names the key when options contradict each other
// or the model; what PlanDeviceMemory returns otherwise.
absl::StatusOr<DevicePlan> PlanDevice(const RuntimeOptions& options,
                                      const formats::ModelFiles& files, std::int64_t free_bytes,
                                      std::uint32_t num_sms);

struct CpuPlan {
  MemoryPlan memory;
  std::int32_t context_tokens = 0;   // longest sequence, if the pool holds it
  std::uint32_t sequence_pages = 0;  // most that it has at a time
};

// The pool of a host.
struct CpuPool {
  cache::KvGeometry geometry;
  models::LayerGroups layers;
  std::int32_t context_tokens = 0;         // longest sequence
  std::int32_t wanted_context_tokens = 0;  // before it was cut to what the pool holds
};

// Plans it for a host of which `free_bytes` are unused, weights loaded: kv_cache.capacity_bytes of
// pages, else pages and their prefix index in device.cpu.kv_memory_share of what is free. Returns
// RESOURCE_EXHAUSTED when that is not enough for two pages; INVALID_ARGUMENT as PlanDevice.
absl::StatusOr<CpuPool> PlanCpuPool(const RuntimeOptions& options, const models::ModelSpec& spec,
                                    std::int64_t free_bytes);

// As PlanDevice for the CPU, with as many pages as kv_cache.capacity_bytes holds; without that key
// the null page and one more, since the rest depends on the memory that is free at start. Returns
// INVALID_ARGUMENT as PlanDevice.
absl::StatusOr<CpuPlan> PlanCpu(const RuntimeOptions& options, const formats::ModelFiles& files);

// Each use of the GPU's memory with its bytes, then "total", "reserve", "free" and, on the host,
// "pinned" and "prefix_index".
std::vector<std::pair<std::string, std::int64_t>> PlanLines(const DevicePlan& plan);

// Of a runner on the CPU. What the tokenizer knows is the caller's to fill in.
RunnerOptions RunnerOptionsFor(const RuntimeOptions& options, std::int32_t context_tokens);

LoadMode LoadModeOf(const ModelOptions& options);

// engine.determinism.
kernels::Determinism DeterminismOf(const DeviceOptions& options);

// Type of the activations on a GPU: model.dtype, or what goes with the pages.
DType CudaActivationType(const RuntimeOptions& options);

// Returns INVALID_ARGUMENT when a pool does not hold a prompt of one token and its answer.
absl::Status CheckHoldsAnything(const RuntimeOptions& options, const cache::PageDemand& demand,
                                std::uint32_t num_blocks);

// Tokens of the longest sequence, of at most `most`, that so many pages hold.
std::int32_t LongestSequence(const cache::PageDemand& demand, std::uint32_t usable_pages,
                             std::int32_t most);

}  // namespace quire::runtime
