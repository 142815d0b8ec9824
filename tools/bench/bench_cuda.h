#pragma once

// Shared code of the CUDA kernel benchmarks: the GPU, its memory, and the timing of an op.
//
// An op is captured 20 times in a graph, so that launch overhead is small. The data of a
// memory-bound op exceed the L2 cache. The time of a whole graph is divided by 20.
// bytes_per_second counts weights (linear), K and V (decode), input and output rows (element-wise)
// and logits (sampler) once. FLOP/s counts a multiply-add as two. For attention it counts only the
// keys that a row attends to. Inputs are random, because zeros run faster.
//
// Threads: one thread.

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

// The GPU that all benchmarks use. It is opened once, since a process has one context.
struct Gpu {
  Gpu(Stream s, bool is_emulated);

  // Returns null if there is no suitable GPU.
  static Gpu* Get();

  Stream stream;
  ThreadPool pool;
  Backend backend;
  const bool emulated;
};

using Benchmark = benchmark::internal::Benchmark;

// 2^20 random values, generated once per process, because generation takes longer than the
// measurements.
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

// Returns `count` random values by repeating the block.
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
// Allocates `total_bytes` of device memory and fills them with copies of the `bytes` bytes at
// `from`. Copying gigabytes from the host would take longer than the measurements.
absl::StatusOr<DeviceBuffer> Repeated(const Gpu& gpu, const void* from, std::int64_t bytes,
                                      std::int64_t total_bytes);

// Allocates device memory with `count` random values, which repeat RandomBlock.
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

// Times enqueue(0), enqueue(1), ... in graphs of 20 calls, by the device's clock. Runs all calls
// once before the capture, because kernels cannot be loaded during capture and their loading must
// not be measured.
absl::Status Measure(benchmark::State& state, Gpu& gpu, Work work,
                     absl::FunctionRef<absl::Status(int)> enqueue);

// Returns the number of copies of a matrix of `bytes` bytes that together take about 256 MiB, which
// is more than the L2 cache. The result is at least 1 and at most the number of launches in a
// graph. It is 1 on the emulated device.
std::size_t CopiesBeyondCache(const Gpu& gpu, std::int64_t bytes);

// If `status` is an error, ends the benchmark with it, so that a lack of memory fails one benchmark
// instead of the process.
void Report(benchmark::State& state, const absl::Status& status);

// The function that Google Benchmark runs. Calls kBody, or reports that there is no GPU.
template <absl::Status (*kBody)(benchmark::State&, Gpu&)>
void Run(benchmark::State& state) {
  Gpu* const gpu = Gpu::Get();
  Report(state, gpu == nullptr ? OpenCudaDevice(0).status() : kBody(state, *gpu));
}

}  // namespace quire::kernels
