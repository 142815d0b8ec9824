// Measures the scan of recurrent layers, for decode steps of several sequences and for a prompt of
// one sequence. The shapes are Qwen3-Next (32 heads, states of 128 x 128) and Mamba-2 (128 heads,
// states of 128 x 64). `simd` 0 is the reference implementation, on one thread.
//
//   bench_kernels --benchmark_filter=StateScan
//
// bytes_per_second counts the states that a step reads and writes once. FLOP/s counts a
// multiply-add as two.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/device_buffer.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/backend/backend.h"
#include "kernels/recurrent/state_rows.h"
#include "kernels/recurrent/state_scan.h"

namespace quire::kernels {
namespace {

struct ScanShape {
  std::uint32_t heads, key_heads, key_size, value_size;
  bool delta;
};
constexpr ScanShape kDeltaShape{32, 16, 128, 128, true};
constexpr ScanShape kSsdShape{128, 8, 128, 64, false};

std::vector<float> UniformFloats(std::size_t count, float low, float high) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

// A step of `rows` rows with `tokens` tokens each. The states of the layers are stored one after
// the other, as in a model, and there are enough layers to exceed the CPU caches.
class ScanStep {
 public:
  ScanStep(const ScanShape& shape, std::uint32_t rows, std::uint32_t tokens)
      : shape_(shape),
        rows_(rows),
        state_bytes_(std::int64_t{shape.heads} * shape.key_size * shape.value_size * 4),
        states_(*DeviceBuffer::Allocate(MemoryKind::kHost, (rows + 1) * kLayers * state_bytes_)),
        offsets_(rows + 1),
        slots_(rows),
        none_(rows, 0),
        positions_(std::size_t{rows} * tokens) {
    for (std::uint32_t row = 0; row <= rows; ++row) offsets_[row] = row * tokens;
    // Writes the memory once, so that the first steps do not measure page faults.
    std::memset(states_.data(), 0, static_cast<std::size_t>(states_.size_bytes()));
    std::iota(slots_.begin(), slots_.end(), 1u);
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      positions_[i] = 1 + static_cast<std::int32_t>(i % tokens);
    }
    const std::size_t keys = shape.key_heads * shape.key_size;
    stride_ = 2 * keys + shape.heads * shape.value_size;
    const std::size_t count = positions_.size();
    qkv_ = UniformFloats(count * stride_, -0.1f, 0.1f);
    decay_ = UniformFloats(count * shape.heads, 0.9f, 1.0f);
    rate_ = UniformFloats(count * shape.heads, 0.0f, 1.0f);
    out_.resize(count * shape.heads * shape.value_size);
  }

  StateScanParams Params(std::int64_t layer) {
    const std::size_t keys = shape_.key_heads * shape_.key_size;
    return {.rows = {.states = states_.bytes().data() + layer % kLayers * state_bytes_,
                     .slot_stride = kLayers * state_bytes_,
                     .slots = {.state_in = slots_.data(),
                               .state_out = slots_.data(),
                               .snapshot_at = none_.data(),
                               .snapshot_slot = none_.data(),
                               .max_rows = rows_},
                     .row_offsets = offsets_.data(),
                     .positions = positions_.data(),
                     .batch_size = rows_,
                     .num_tokens = static_cast<std::uint32_t>(positions_.size())},
            .q = qkv_.data(),
            .k = qkv_.data() + keys,
            .v = qkv_.data() + 2 * keys,
            .decay = decay_.data(),
            .rate = rate_.data(),
            .out = out_.data(),
            .qkv_stride = static_cast<std::int64_t>(stride_),
            .heads = shape_.heads,
            .key_heads = shape_.key_heads,
            .key_size = shape_.key_size,
            .value_size = shape_.value_size,
            .delta = shape_.delta};
  }
  double state_bytes() const { return 2.0 * rows_ * static_cast<double>(state_bytes_); }
  double float_ops() const {
    const double elements =
        static_cast<double>(state_bytes_) / 4 * static_cast<double>(positions_.size());
    return elements * (shape_.delta ? 7 : 5);
  }

 private:
  static constexpr std::int64_t kLayers = 24;

  const ScanShape shape_;
  const std::uint32_t rows_;
  const std::int64_t state_bytes_;
  DeviceBuffer states_;
  std::vector<std::uint32_t> offsets_;
  std::vector<std::uint32_t> slots_;
  std::vector<std::uint32_t> none_;
  std::vector<std::int32_t> positions_;
  std::size_t stride_ = 0;
  std::vector<float> qkv_;
  std::vector<float> decay_;
  std::vector<float> rate_;
  std::vector<float> out_;
};

template <const ScanShape& kShape>
void RunScan(benchmark::State& state) {
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto tokens = static_cast<std::uint32_t>(state.range(1));
  const bool simd = state.range(3) != 0;
  ThreadPool pool(static_cast<int>(state.range(2)));
  const Backend backend = *Backend::Create(Device::Cpu(), &pool, CpuActivations::kInt8);
  ScanStep step(kShape, rows, tokens);
  std::int64_t layer = 0;
  for (auto _ : state) {
    const StateScanParams params = step.Params(layer++);
    if (simd) {
      QUIRE_CHECK(StateScan(backend, params).ok());
      continue;
    }
    for (std::uint32_t row = 0; row < rows; ++row) {
      for (std::uint32_t head = 0; head < kShape.heads; ++head) {
        internal::StateScanCpu(params, row, head, 0, kShape.value_size);
      }
    }
  }
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount * static_cast<double>(state.iterations()),
                              benchmark::Counter::kIsRate);
  };
  state.counters["bytes_per_second"] = rate(step.state_bytes());
  state.counters["FLOP/s"] = rate(step.float_ops());
}

void ScanShapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "tokens", "threads", "simd"})->UseRealTime();
  for (const std::int64_t simd : {0, 1}) {
    bench->Args({1, 1, 1, simd})->Args({8, 1, 1, simd})->Args({1, 256, 1, simd});
  }
  bench->Args({8, 1, 2, 1})->Args({1, 256, 2, 1});
}
BENCHMARK(RunScan<kDeltaShape>)->Name("BM_StateScanDelta")->Apply(ScanShapes);
BENCHMARK(RunScan<kSsdShape>)->Name("BM_StateScanSsd")->Apply(ScanShapes);

}  // namespace
}  // namespace quire::kernels
