#pragma once

// What the benchmarks of the CUDA kernels share: the GPU, its memory, and how an op is timed.
//
// An op is captured 20 times in a graph, over memory that together passes the L2 cache where the op
// is bound by memory, so that neither launches nor caches flatter it; the time is that of whole
// graphs. bytes_per_second counts weights (linear), K and V (decode), rows in and out
// (element-wise), logits (sampler) once; FLOP/s counts a multiply-add as two, causal attention
// half. Inputs are random: zeros run faster.
//
// Threads: one.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

// The GPU of all benchmarks: opened once, since a process has one context.
struct Gpu {
  Gpu(Stream s, bool is_emulated);

  // Null where there is no GPU that will do.
  static Gpu* Get();

  Stream stream;
  ThreadPool pool;
  Backend backend;
  const bool emulated;
};

using Benchmark = benchmark::internal::Benchmark;

// 2^20 random values, drawn once in a process: drawing took longer than what is measured.
template <typename T>
const std::vector<T>& RandomBlock(float deviation) {
  static auto& blocks = *new std::map<float, std::vector<T>>();
  std::vector<T>& block = blocks[deviation];
  if (block.empty()) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0.0f, deviation);
    block.resize(1 << 20);
    for (T& value : block) value = FromFloat<T>(normal(generator));
  }
  return block;
}

// `count` random values, those of the block again and again.
template <typename T>
std::vector<T> RandomValues(std::int64_t count, float deviation) {
  const std::vector<T>& block = RandomBlock<T>(deviation);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); i += block.size()) {
    std::copy_n(block.begin(), std::min(block.size(), values.size() - i),
                values.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return values;
}

absl::StatusOr<DeviceBuffer> DeviceMemory(std::int64_t bytes);
// `total_bytes` of device memory that repeat `bytes` bytes: gigabytes from the host would take
// longer than what is measured.
absl::StatusOr<DeviceBuffer> Repeated(const Gpu& gpu, const void* from, std::int64_t bytes,
                                      std::int64_t total_bytes);

// Device memory of `count` random values of a type.
template <typename T>
absl::StatusOr<DeviceBuffer> Random(const Gpu& gpu, std::int64_t count, float deviation = 1.0f) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const std::vector<T>& block = RandomBlock<T>(deviation);
  const std::int64_t once = std::min(count, static_cast<std::int64_t>(block.size()));
  return Repeated(gpu, block.data(), once * kSize, count * kSize);
}

template <typename T>
absl::StatusOr<DeviceBuffer> ToDevice(const Gpu& gpu, const std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  return Repeated(gpu, values.data(), bytes, bytes);
}

struct Work {
  double bytes = 0;
  double flops = 0;
};

// Times enqueue(0), enqueue(1), ... in graphs of 20, by the device's clock. All of them run once
// before: loading a kernel is not allowed in a capture, and is not what is measured.
absl::Status Measure(benchmark::State& state, Gpu& gpu, Work work,
                     absl::FunctionRef<absl::Status(int)> enqueue);

// Matrices of this many bytes that together pass the L2 cache, no more than a graph has launches;
// one on the emulated device.
std::size_t CopiesBeyondCache(const Gpu& gpu, std::int64_t bytes);

// Ends a benchmark that failed with its error; memory that is not there fails one benchmark, not
// the process.
void Report(benchmark::State& state, const absl::Status& status);

// The function that Google Benchmark runs.
template <absl::Status (*kBody)(benchmark::State&, Gpu&)>
void Run(benchmark::State& state) {
  Gpu* const gpu = Gpu::Get();
  Report(state, gpu == nullptr ? OpenCudaDevice(0).status() : kBody(state, *gpu));
}

}  // namespace quire::kernels
