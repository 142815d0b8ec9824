#pragma once

// What is asked of a model that is to run on a device: plain values, which server/config fills in
// from the keys that the comments name.
//
// Place:      above the model's own files, below ComputeDevice, the plans and ModelStack.
// Threads:    values.
// Lifetime:   values.

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "models/weights/quantization.h"

namespace quire::runtime {

enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };

// device.*, and of engine.* how the device computes.
struct DeviceOptions {
  DeviceChoice type = DeviceChoice::kAuto;
  std::int32_t cuda_ordinal = 0;        // of the only GPU
  std::int64_t reserve_bytes = 0;       // of a GPU, left to others where the pool takes the rest
  std::optional<std::int32_t> threads;  // that compute; absent: physical cores
  bool pin_threads = true;              // where each of them has a core of its own
  std::string isa = "auto";             // a name of kernels::SelectCpuIsa
  std::string determinism;  // "strict", "batch_invariant" or "fast"; all are one on CPUs
  bool cuda_graphs = true;
};

// model.*
struct ModelOptions {
  std::string path;            // a directory or a GGUF file; "embedded": the model in the binary
  std::optional<DType> dtype;  // of activations, kBF16 or kF32; absent: the device's own
  models::Quantization quantization = models::Quantization::kAuto;
  bool fp8_activations = false;  // rows that meet fp8 weights are rounded to e4m3
  std::string packed_dir;        // of packed weights; empty: none
  bool dummy_weights = false;    // random numbers instead of the files'
  std::optional<std::int32_t> max_context_tokens;
};

// kv_cache.*, and device.cpu.kv_memory_share.
struct PoolOptions {
  std::uint32_t page_size = 0;
  DType dtype = DType::kBF16;
  std::optional<std::int64_t> capacity_bytes;
  double memory_share = 0;  // of free memory, when capacity_bytes is absent
  bool prefix_caching = true;
  bool partial_page_reuse = true;
};

// What the steps of a scheduler need at most on the device that computes.
struct StepSizes {
  std::uint32_t max_rows = 0;    // sequences that run at a time
  std::uint32_t max_tokens = 0;  // of one step
  // Prompt tokens that one sequence has in steps under way.
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
