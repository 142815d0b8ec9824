#pragma once

// The options of a model that runs on a device. server/config fills in these values from the
// configuration keys that the comments name.
//
// Place:      below ComputeDevice, the plans and ModelStack.
// Threads:    any; plain values.

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "kernels/backend/backend.h"
#include "models/weights/quantization.h"

namespace quire::runtime {

enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };

// The keys device.*, and the keys of engine.* that determine how the device computes.
struct DeviceOptions {
  DeviceChoice type = DeviceChoice::kAuto;
  std::int32_t cuda_ordinal = 0;        // ordinal of the GPU to use
  std::int64_t reserve_bytes = 0;       // GPU memory left free if the pool is sized automatically
  std::optional<std::int32_t> threads;  // number of compute threads; absent: physical cores
  bool pin_threads = true;              // binds threads to cores if each thread gets a core
  std::string isa = "auto";             // a name that kernels::SelectCpuIsa accepts
  kernels::CpuActivations activations = kernels::CpuActivations::kAuto;
  std::string determinism;  // "strict", "batch_invariant" or "fast"; no effect on CPUs
  bool cuda_graphs = true;
  bool hopper_kernels = true;  // GPUs of compute capability 9.0 run the kernels made for them
};

// The keys model.*
struct ModelOptions {
  std::string path;            // a directory or a GGUF file; "embedded": the model in the binary
  std::optional<DType> dtype;  // type of activations, kBF16 or kF32; absent: chosen by device
  models::Quantization quantization = models::Quantization::kAuto;
  bool fp8_activations = false;  // dynamic activation quantization (fp8) for fp8 weights
  std::string packed_dir;        // directory of packed weights; empty: none
  bool dummy_weights = false;    // random weights instead of those in the files
  std::optional<std::int32_t> max_context_tokens;
};

// The keys kv_cache.*, and device.cpu.kv_memory_share.
struct PoolOptions {
  std::uint32_t page_size = 0;
  DType dtype = DType::kBF16;
  std::optional<std::int64_t> capacity_bytes;
  double memory_share = 0;  // share of free memory, used if capacity_bytes is absent
  double state_share = 0;   // share of the pool for snapshots of recurrent states
  bool prefix_caching = true;
  bool partial_page_reuse = true;
};

// The maximum sizes of the scheduler's steps on a device.
struct StepSizes {
  std::uint32_t max_rows = 0;    // sequences that run at a time
  bool may_lower_rows = false;   // fewer rows may be planned if their recurrent states do not fit
  std::uint32_t max_tokens = 0;  // tokens of one step
  // Prompt tokens of one sequence that are planned or in flight at a time.
  std::uint32_t max_overlap_tokens = 0;
  std::uint32_t max_logprobs = 0;
};

struct RuntimeOptions {
  DeviceOptions device;
  ModelOptions model;
  PoolOptions pool;
  StepSizes steps;
};

}  // namespace quire::runtime
