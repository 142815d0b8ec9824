// Time and rates of the CUDA kernels beside the roofline probes of the GPU, one process:
//
//   bench_kernels_cuda --benchmark_filter='DeviceCopy|Decode'
//   bench_kernels_cuda --benchmark_filter=/tiny                   each op once, on any device
//   bench_kernels_cuda --device                                   what the device is, as JSON
//
// An op is captured 20 times in a graph, over memory that together passes the L2 cache where the op
// is bound by memory, so that neither launches nor caches flatter it; the time is that of whole
// graphs. bytes_per_second counts weights (linear), K and V (decode), rows in and out
// (element-wise), logits (sampler) once; FLOP/s counts a multiply-add as two, causal attention
// half. Inputs are random: zeros run faster.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/device_graph.h"
#include "base/device_timer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/backend/proven.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/ops.h"
#include "kernels/sampling/device_sampler.h"

namespace quire::kernels {
namespace {

// The GPU of all benchmarks: opened once, since a process has one context.
struct Gpu {
  explicit Gpu(Stream s)
      : stream(std::move(s)),
        pool(2),
        backend(*Backend::CreateCuda(stream, Determinism::kBatchInvariant, &pool)) {}

  static Gpu* Get() {
    static const auto gpu = []() -> std::unique_ptr<Gpu> {
      const absl::StatusOr<Device> device = OpenCudaDevice(0);
      if (!device.ok()) return nullptr;
      absl::StatusOr<Stream> stream = Stream::Create(*device);
      QUIRE_CHECK(stream.ok());
      return std::make_unique<Gpu>(*std::move(stream));
    }();
    return gpu.get();
  }
  static bool emulated() { return IsCudaEmulated(); }

  Stream stream;
  ThreadPool pool;
  Backend backend;
};

// Device memory with random values of a type.
template <typename T>
DeviceBuffer Random(const Gpu& gpu, std::int64_t count, float deviation = 1.0f) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<T> values(static_cast<std::size_t>(std::min<std::int64_t>(count, 1 << 20)));
  for (T& value : values) value = FromFloat<T>(normal(generator));
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  auto buffer = *DeviceBuffer::Allocate(MemoryKind::kDevice, count * kSize);
  auto* const all = static_cast<T*>(buffer.data());
  auto filled = static_cast<std::int64_t>(values.size());
  QUIRE_CHECK(gpu.stream.Copy(all, values.data(), filled * kSize).ok());
  // The device repeats them: gigabytes from the host would take longer than what is measured.
  while (filled < count) {
    const std::int64_t size = std::min(filled, count - filled);
    QUIRE_CHECK(gpu.stream.Copy(all + filled, all, size * kSize).ok());
    filled += size;
  }
  QUIRE_CHECK(gpu.stream.Synchronize().ok());
  return buffer;
}

// Host memory of `count` random values, a block of them again and again.
std::vector<BF16> RandomOnHost(std::size_t count, float deviation) {
  std::mt19937 generator(2);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<BF16> values(count);
  const std::size_t block = std::min<std::size_t>(count, 1 << 20);
  for (std::size_t i = 0; i < block; ++i) values[i] = BF16::FromFloat(normal(generator));
  for (std::size_t i = block; i < count; i += block) {
    std::copy_n(values.begin(), std::min(block, count - i),
                values.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return values;
}

template <typename T>
DeviceBuffer ToDevice(const Gpu& gpu, const std::vector<T>& values) {
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  auto buffer = *DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
  QUIRE_CHECK(gpu.stream.Copy(buffer.data(), values.data(), bytes).ok());
  QUIRE_CHECK(gpu.stream.Synchronize().ok());
  return buffer;
}

struct Work {
  double bytes = 0;
  double flops = 0;
};

// Times enqueue(0), enqueue(1), ... in graphs of 20, by the device's clock. All of them run once
// before: loading a kernel is not allowed in a capture, and is not what is measured.
void Measure(benchmark::State& state, Gpu& gpu, Work work,
             absl::FunctionRef<absl::Status(int)> enqueue) {
  const int launches = gpu.emulated() ? 1 : 20;
  absl::Status status;
  for (int i = 0; i < launches; ++i) status.Update(enqueue(i));
  status.Update(gpu.stream.Synchronize());
  if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  absl::StatusOr<DeviceTimer> timer = DeviceTimer::Create(gpu.stream);
  if (!timer.ok()) return state.SkipWithError(timer.status().ToString().c_str());
  absl::StatusOr<DeviceGraph> graph = DeviceGraph::Capture(gpu.stream, [&]() -> absl::Status {
    for (int i = 0; i < launches; ++i) QUIRE_RETURN_IF_ERROR(enqueue(i));
    return absl::OkStatus();
  });
  if (!graph.ok()) return state.SkipWithError(graph.status().ToString().c_str());
  status = graph->Launch(gpu.stream);
  status.Update(gpu.stream.Synchronize());
  for (auto _ : state) {
    status.Update(timer->Start());
    status.Update(graph->Launch(gpu.stream));
    status.Update(timer->Stop());
    const absl::StatusOr<absl::Duration> time = timer->Elapsed();
    status.Update(time.status());
    state.SetIterationTime(time.ok() ? absl::ToDoubleSeconds(*time) / launches : 1);
  }
  if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  const auto iterations = static_cast<double>(state.iterations());
  if (work.bytes > 0) state.SetBytesProcessed(static_cast<std::int64_t>(work.bytes * iterations));
  if (work.flops > 0) {
    state.counters["FLOP/s"] =
        benchmark::Counter(work.flops * iterations, benchmark::Counter::kIsRate);
  }
}

Gpu* GpuOrSkip(benchmark::State& state) {
  Gpu* const gpu = Gpu::Get();
  if (gpu == nullptr) state.SkipWithError(OpenCudaDevice(0).status().ToString().c_str());
  return gpu;
}

// Every benchmark has one shape that even an emulated device runs in a moment, named /tiny.
using Benchmark = benchmark::internal::Benchmark;

// C: read and write of 2 GiB each. Argument: bytes.
void BM_DeviceCopy(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const std::int64_t bytes = state.range(0);
  const DeviceBuffer from = Random<float>(*gpu, bytes / 4);
  const auto to = *DeviceBuffer::Allocate(MemoryKind::kDevice, bytes);
  Measure(state, *gpu, {.bytes = 2.0 * static_cast<double>(bytes)},
          [&](int) { return gpu->stream.Copy(to.data(), from.data(), bytes); });
}
BENCHMARK(BM_DeviceCopy)->Arg(std::int64_t{2} << 30)->UseManualTime();
BENCHMARK(BM_DeviceCopy)->Name("BM_DeviceCopy/tiny")->Arg(1 << 12)->UseManualTime();

// Arguments: N, K, rows. bf16 in and out, as qkv and gate_up.
void BM_Linear(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto n = static_cast<std::uint32_t>(state.range(0));
  const auto k = static_cast<std::uint32_t>(state.range(1));
  const auto rows = static_cast<std::uint32_t>(state.range(2));
  const std::int64_t bytes = std::int64_t{n} * k * 2;
  const std::size_t copies =
      gpu->emulated() ? 1
                      : static_cast<std::size_t>(std::max<std::int64_t>(1, (256 << 20) / bytes));
  const std::vector<BF16> host = RandomOnHost(static_cast<std::size_t>(n) * k, 0.05f);
  std::vector<PackedLinear> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(*PackLinearWeight(gpu->backend, host.data(), DType::kBF16, n, k));
  }
  const DeviceBuffer x = Random<BF16>(*gpu, std::int64_t{rows} * k);
  const DeviceBuffer y = Random<BF16>(*gpu, std::int64_t{rows} * n);
  Measure(state, *gpu, {.bytes = static_cast<double>(bytes), .flops = 2.0 * n * k * rows},
          [&](int i) {
            return Linear(gpu->backend, {.x = static_cast<const BF16*>(x.data()),
                                         .weight = &weights[static_cast<std::size_t>(i) % copies],
                                         .y = static_cast<BF16*>(y.data()),
                                         .x_stride = k,
                                         .y_stride = n,
                                         .num_rows = rows});
          });
}
void LinearShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"n", "k", "m"})->UseManualTime();
  // Llama 3.1 8B: qkv, o, gate and up, down.
  for (const auto& [n, k] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}) {
    for (const int rows : {1, 8, 16, 32, 64, 512, 4096}) benchmark->Args({n, k, rows});
  }
}
BENCHMARK(BM_Linear)->Apply(LinearShapes);
BENCHMARK(BM_Linear)->Name("BM_Linear/tiny")->Args({128, 64, 3})->UseManualTime();

// Arguments: format, inputs that share a scale (0: all), whether there are zero points and an
// order, N, K, rows. bf16 in and out.
void BM_CodedLinear(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto group = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(5));
  const auto rows = static_cast<std::uint32_t>(state.range(6));
  const QuantizedShape shape{.format = static_cast<WeightFormat>(state.range(0)),
                             .n = static_cast<std::uint32_t>(state.range(4)),
                             .k = k,
                             .group = group == 0 ? k : group,
                             .has_min = state.range(2) != 0,
                             .min_in_steps = state.range(2) != 0,
                             .has_order = state.range(3) != 0};
  std::mt19937 generator(2);
  std::vector<std::uint32_t> order(shape.has_order ? k : 0);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), generator);
  std::vector<std::uint8_t> codes(1 << 20);
  for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(generator());
  const auto source = [&](std::uint32_t row, const QuantizedRow& out) {
    const bool is_int4 = shape.format == WeightFormat::kInt4;
    std::size_t at = std::size_t{row} * 4099;
    for (std::int8_t& q : out.q) {
      const std::uint8_t code = codes[at++ % codes.size()];
      if (shape.format == WeightFormat::kFp8E4M3) {
        q = static_cast<std::int8_t>(code & 0xbf);  // no NaN
      } else if (shape.format == WeightFormat::kInt8) {
        q = static_cast<std::int8_t>(code);
      } else {
        q = static_cast<std::int8_t>(code % 16 - (is_int4 && !shape.has_min ? 8 : 0));
      }
    }
    std::fill(out.scales.begin(), out.scales.end(), 0.015625f);
    std::fill(out.mins.begin(), out.mins.end(), -7.0f);
  };
  const std::int64_t bytes = CudaQuantizedBytes(shape);
  const std::size_t copies =
      gpu->emulated() ? 1
                      : static_cast<std::size_t>(std::max<std::int64_t>(1, (256 << 20) / bytes));
  std::vector<PackedLinear> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(*PackQuantizedRows(gpu->backend, shape, source, order));
  }
  const DeviceBuffer x = Random<BF16>(*gpu, std::int64_t{rows} * k);
  const DeviceBuffer y = Random<BF16>(*gpu, std::int64_t{rows} * shape.n);
  state.SetLabel(std::string(WeightFormatName(shape.format)));
  Measure(state, *gpu, {.bytes = static_cast<double>(bytes), .flops = 2.0 * shape.n * k * rows},
          [&](int i) {
            return Linear(gpu->backend, {.x = static_cast<const BF16*>(x.data()),
                                         .weight = &weights[static_cast<std::size_t>(i) % copies],
                                         .y = static_cast<BF16*>(y.data()),
                                         .x_stride = k,
                                         .y_stride = shape.n,
                                         .num_rows = rows});
          });
}
constexpr auto kInt8 = static_cast<std::int64_t>(WeightFormat::kInt8);
constexpr auto kFp8 = static_cast<std::int64_t>(WeightFormat::kFp8E4M3);
constexpr auto kInt4 = static_cast<std::int64_t>(WeightFormat::kInt4);
constexpr auto kFp4 = static_cast<std::int64_t>(WeightFormat::kFp4E2M1);
void CodedShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"format", "group", "zeros", "order", "n", "k", "m"})->UseManualTime();
  struct Coded {
    std::int64_t format, group, zeros, order;
  };
  for (const Coded& c : {Coded{kInt8, 0, 0, 0},
                         {kInt8, 32, 0, 0},
                         {kInt8, 128, 0, 0},
                         {kFp8, 0, 0, 0},
                         {kFp8, 128, 0, 0},
                         {kInt4, 32, 0, 0},
                         {kInt4, 128, 0, 0},
                         {kInt4, 128, 1, 0},
                         {kInt4, 128, 1, 1},
                         {kFp4, 32, 0, 0}}) {
    for (const int rows : {1, 8, 64, 2048}) {
      benchmark->Args({c.format, c.group, c.zeros, c.order, 28672, 4096, rows});
    }
  }
}
BENCHMARK(BM_CodedLinear)->Apply(CodedShapes);
BENCHMARK(BM_CodedLinear)
    ->Name("BM_CodedLinear/tiny")
    ->Args({kInt4, 32, 1, 1, 128, 64, 3})
    ->UseManualTime();

// Pages and lengths of `batch` sequences, each with `cached` tokens before the step and `rows` in
// it.
struct Sequences {
  Sequences(const Gpu& gpu, DType dtype, std::uint32_t batch, std::uint32_t cached,
            std::uint32_t rows, std::uint32_t kv_heads, std::uint32_t head_size, bool is_prompt)
      : geometry{.num_layers = 1,
                 .page_size = kPage,
                 .num_heads = kv_heads,
                 .head_size = head_size,
                 .dtype = dtype} {
    const std::uint32_t pages = (cached + rows + kPage - 1) / kPage;
    const std::uint32_t stride = (pages + 7) / 8 * 8 + 16;
    geometry.num_blocks = batch * pages + 1;
    pool = Random<BF16>(gpu, geometry.num_blocks * geometry.page_bytes() / 2);
    QUIRE_CHECK(gpu.stream.Zero(pool.data(), geometry.page_bytes()).ok());  // the null page
    std::vector<std::uint32_t> ids(std::size_t{batch} * stride), offsets(batch + 1);
    for (std::uint32_t b = 0; b < batch; ++b) {
      offsets[b + 1] = offsets[b] + rows;
      for (std::uint32_t i = 0; i < pages; ++i) ids[b * stride + i] = 1 + i * batch + b;
    }
    table = ToDevice(gpu, ids);
    lengths = ToDevice(gpu, std::vector<std::uint32_t>(batch, cached));
    row_offsets = ToDevice(gpu, offsets);
    prefill_tokens = ToDevice(gpu, std::vector<std::uint32_t>(batch, is_prompt ? rows : 0));
    const std::uint32_t keys = cached + rows;
    collection = *MakeKvCollection(
        geometry, pool.data(),
        {static_cast<const std::uint32_t*>(table.data()),
         static_cast<const std::uint32_t*>(lengths.data()), stride, batch, rows, keys, cached});
  }

  static constexpr std::uint32_t kPage = 64;
  cache::KvGeometry geometry;
  DeviceBuffer pool, table, lengths, row_offsets, prefill_tokens;
  std::optional<AnyKvCollection> collection;
};

// Arguments: sequences, cached tokens, rows of each, heads, KV heads, head size, and whether tensor
// maps are given, so that the kernels of compute capability 9.0 run, or the portable ones. bf16;
// one row is a decode step, more are a prompt.
void BM_Attention(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto cached = static_cast<std::uint32_t>(state.range(1));
  const auto rows = static_cast<std::uint32_t>(state.range(2));
  const auto heads = static_cast<std::uint32_t>(state.range(3));
  const auto kv_heads = static_cast<std::uint32_t>(state.range(4));
  const auto d = static_cast<std::uint32_t>(state.range(5));
  const bool is_prompt = rows > 1;
  const Sequences sequences(*gpu, DType::kBF16, batch, cached, rows, kv_heads, d, is_prompt);
  const auto plan = *AttentionPlan::Create(gpu->backend, {.max_rows = batch,
                                                          .max_step_tokens = batch * rows,
                                                          .max_length = cached + rows,
                                                          .num_heads = heads,
                                                          .num_kv_heads = kv_heads,
                                                          .head_size = d});
  const AttentionPlanParams lengths{
      .row_offsets = static_cast<const std::uint32_t*>(sequences.row_offsets.data()),
      .cache_lengths = static_cast<const std::uint32_t*>(sequences.lengths.data()),
      .prefill_tokens = static_cast<const std::uint32_t*>(sequences.prefill_tokens.data()),
      .batch_size = batch,
      .has_prompt_rows = is_prompt,
      .has_generated_rows = !is_prompt};
  const AnyKvView k = KeyView(*sequences.collection, 0);
  const AnyKvView v = ValueView(*sequences.collection, 0);
  std::unique_ptr<cuda::KvTensorMaps> maps;
  if (state.range(6) != 0) {
    maps = *cuda::KvTensorMaps::Create(gpu->stream.device(), *sequences.collection);
    if (maps == nullptr) return state.SkipWithError("no tensor maps on this device");
  }
  const std::int64_t width = std::int64_t{heads} * d;
  const DeviceBuffer q = Random<BF16>(*gpu, batch * rows * width);
  const DeviceBuffer out = Random<BF16>(*gpu, batch * rows * width);
  const double keys = cached + (rows + 1) / 2.0;
  Measure(state, *gpu,
          {.bytes = 4.0 * batch * (cached + rows) * kv_heads * d,
           .flops = 4.0 * batch * rows * keys * heads * d},
          [&](int) -> absl::Status {
            // Items are taken from a counter that the planner resets, so each launch needs its
            // plan.
            QUIRE_RETURN_IF_ERROR(PlanAttention(gpu->backend, lengths, plan.get()));
            return PagedAttention(gpu->backend, {.keys = &k,
                                                 .values = &v,
                                                 .q = static_cast<const BF16*>(q.data()),
                                                 .out = static_cast<BF16*>(out.data()),
                                                 .row_offsets = lengths.row_offsets,
                                                 .q_stride = width,
                                                 .out_stride = width,
                                                 .batch_size = batch,
                                                 .num_heads = heads,
                                                 .scale = 0.088f,
                                                 .plan = plan.get(),
                                                 .maps = maps.get()});
          });
}
void AttentionShapes(Benchmark* benchmark) {
  benchmark->ArgNames({"batch", "cached", "rows", "heads", "kv_heads", "d", "maps"})
      ->UseManualTime();
  for (const int maps : {0, 1}) {
    benchmark->Args({1, 1024, 1, 32, 8, 128, maps})
        ->Args({32, 4096, 1, 32, 8, 128, maps})
        ->Args({64, 8192, 1, 32, 8, 128, maps})
        ->Args({32, 4096, 1, 32, 32, 64, maps})
        ->Args({1, 0, 2048, 32, 8, 128, maps})
        ->Args({1, 0, 8192, 32, 8, 128, maps})
        ->Args({1, 0, 8192, 32, 8, 64, maps})
        ->Args({1, 24576, 8192, 32, 8, 128, maps});
  }
}
void TinyAttention(Benchmark* benchmark) {
  benchmark->UseManualTime();
  for (const int maps : {0, 1}) {
    benchmark->Args({2, 70, 1, 4, 2, 64, maps})->Args({1, 3, 70, 4, 2, 64, maps});
  }
}
BENCHMARK(BM_Attention)->Apply(AttentionShapes);
BENCHMARK(BM_Attention)->Name("BM_Attention/tiny")->Apply(TinyAttention);

// Argument: sequences of a decode step at 4096 tokens.
void BM_PlanAttention(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto plan = *AttentionPlan::Create(gpu->backend, {.max_rows = batch,
                                                          .max_step_tokens = batch,
                                                          .max_length = 4096,
                                                          .num_heads = 32,
                                                          .num_kv_heads = 8,
                                                          .head_size = 128});
  std::vector<std::uint32_t> offsets(batch + 1);
  for (std::uint32_t b = 0; b <= batch; ++b) offsets[b] = b;
  const DeviceBuffer row_offsets = ToDevice(*gpu, offsets);
  const DeviceBuffer lengths = ToDevice(*gpu, std::vector<std::uint32_t>(batch, 4095));
  const DeviceBuffer prefill_tokens = ToDevice(*gpu, std::vector<std::uint32_t>(batch, 0));
  Measure(state, *gpu, {}, [&](int) {
    return PlanAttention(
        gpu->backend,
        {.row_offsets = static_cast<const std::uint32_t*>(row_offsets.data()),
         .cache_lengths = static_cast<const std::uint32_t*>(lengths.data()),
         .prefill_tokens = static_cast<const std::uint32_t*>(prefill_tokens.data()),
         .batch_size = batch,
         .has_prompt_rows = false,
         .has_generated_rows = true},
        plan.get());
  });
}
BENCHMARK(BM_PlanAttention)->Arg(1)->Arg(64)->Arg(512)->ArgName("batch")->UseManualTime();
BENCHMARK(BM_PlanAttention)->Name("BM_PlanAttention/tiny")->Arg(3)->UseManualTime();

// Arguments: rows, hidden.
void BM_RmsNorm(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto hidden = static_cast<std::uint32_t>(state.range(1));
  const DeviceBuffer x = Random<float>(*gpu, std::int64_t{rows} * hidden);
  const DeviceBuffer weight = Random<float>(*gpu, hidden);
  const DeviceBuffer y = Random<BF16>(*gpu, std::int64_t{rows} * hidden);
  Measure(state, *gpu, {.bytes = 6.0 * rows * hidden}, [&](int) {
    return RmsNorm(gpu->backend, {.x = static_cast<const float*>(x.data()),
                                  .weight = static_cast<const float*>(weight.data()),
                                  .y = static_cast<BF16*>(y.data()),
                                  .x_stride = hidden,
                                  .y_stride = hidden,
                                  .num_rows = rows,
                                  .hidden = hidden,
                                  .epsilon = 1e-5f});
  });
}
BENCHMARK(BM_RmsNorm)
    ->Args({1, 4096})
    ->Args({8192, 4096})
    ->ArgNames({"rows", "hidden"})
    ->UseManualTime();
BENCHMARK(BM_RmsNorm)->Name("BM_RmsNorm/tiny")->Args({2, 64})->UseManualTime();

// Arguments: rows, intermediate size.
void BM_SiluProduct(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto columns = static_cast<std::uint32_t>(state.range(1));
  const DeviceBuffer x = Random<BF16>(*gpu, std::int64_t{2} * rows * columns);
  const DeviceBuffer y = Random<BF16>(*gpu, std::int64_t{rows} * columns);
  const auto* const gate = static_cast<const BF16*>(x.data());
  Measure(state, *gpu, {.bytes = 6.0 * rows * columns}, [&](int) {
    return GatedProduct(gpu->backend, {gate, gate + columns, static_cast<BF16*>(y.data()),
                                       2 * std::int64_t{columns}, 2 * std::int64_t{columns},
                                       columns, rows, columns});
  });
}
BENCHMARK(BM_SiluProduct)
    ->Args({1, 14336})
    ->Args({4096, 14336})
    ->ArgNames({"rows", "n"})
    ->UseManualTime();
BENCHMARK(BM_SiluProduct)->Name("BM_SiluProduct/tiny")->Args({2, 64})->UseManualTime();

// Arguments: sequences of one new token each. Heads of Llama 3.1 8B.
void BM_QkvStore(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  constexpr std::uint32_t kHeads = 32, kKvHeads = 8, kHeadSize = 128;
  const Sequences sequences(*gpu, DType::kBF16, batch, 63, 1, kKvHeads, kHeadSize, false);
  constexpr std::int64_t kWidth = (kHeads + 2 * kKvHeads) * kHeadSize;
  const DeviceBuffer qkv = Random<BF16>(*gpu, batch * kWidth);
  const DeviceBuffer angles = Random<float>(*gpu, std::int64_t{batch} * kHeadSize);
  std::vector<std::int32_t> rows(batch);
  for (std::uint32_t b = 0; b < batch; ++b) rows[b] = static_cast<std::int32_t>(b);
  const DeviceBuffer token_rows = ToDevice(*gpu, rows);
  const DeviceBuffer positions = ToDevice(*gpu, std::vector<std::int32_t>(batch, 63));
  const AnyKvView k = KeyView(*sequences.collection, 0);
  const AnyKvView v = ValueView(*sequences.collection, 0);
  const auto* const cosines = static_cast<const float*>(angles.data());
  Measure(state, *gpu, {.bytes = 2.0 * 2 * static_cast<double>(batch * kWidth)}, [&](int) {
    return QkvStore(gpu->backend,
                    {.keys = &k,
                     .values = &v,
                     .qkv = static_cast<BF16*>(qkv.data()),
                     .qkv_stride = kWidth,
                     .cosines = cosines,
                     .sines = cosines + std::int64_t{batch} * kHeadSize / 2,
                     .row_offsets = static_cast<const std::uint32_t*>(sequences.row_offsets.data()),
                     .token_rows = static_cast<const std::int32_t*>(token_rows.data()),
                     .positions = static_cast<const std::int32_t*>(positions.data()),
                     .batch_size = batch,
                     .num_rows = batch,
                     .num_heads = kHeads,
                     .rotary_size = kHeadSize});
  });
}
BENCHMARK(BM_QkvStore)->Arg(1)->Arg(4096)->ArgName("rows")->UseManualTime();
BENCHMARK(BM_QkvStore)->Name("BM_QkvStore/tiny")->Arg(2)->UseManualTime();

// Arguments: rows, vocabulary, top_k, top_p in percent.
void BM_Sample(benchmark::State& state) {
  Gpu* const gpu = GpuOrSkip(state);
  if (gpu == nullptr) return;
  const auto rows = static_cast<std::uint32_t>(state.range(0));
  const auto vocab = static_cast<std::uint32_t>(state.range(1));
  const auto sampler = *DeviceSampler::Create(
      gpu->backend,
      {.max_samples = rows, .max_prompt_logprobs = 1, .vocab = vocab, .max_logprobs = 0}, {},
      vocab);
  const DeviceBuffer logits = Random<float>(*gpu, std::int64_t{rows} * vocab, 3.0f);
  const auto tokens = *DeviceBuffer::Allocate(MemoryKind::kDevice, rows * 4);
  std::vector<SamplingRow> draws(rows);
  for (std::uint32_t i = 0; i < rows; ++i) {
    draws[i] = {.logits = static_cast<const float*>(logits.data()) + std::int64_t{i} * vocab,
                .temperature = 0.7f,
                .top_p = static_cast<float>(state.range(3)) / 100,
                .top_k = static_cast<std::int32_t>(state.range(2)),
                .seed = i,
                .text_vocab = vocab};
  }
  Measure(state, *gpu, {.bytes = 4.0 * rows * vocab}, [&](int) {
    sampler->Reset(0);
    return sampler->Sample(draws, static_cast<std::int32_t*>(tokens.data()), 0);
  });
}
BENCHMARK(BM_Sample)
    ->ArgNames({"rows", "vocab", "k", "p"})
    ->Args({1, 128256, 0, 100})
    ->Args({64, 128256, 0, 100})
    ->Args({64, 128256, 40, 95})
    ->UseManualTime();
BENCHMARK(BM_Sample)->Name("BM_Sample/tiny")->Args({2, 500, 5, 95})->UseManualTime();

}  // namespace

// Prints the device as JSON, after a launch, so that a GPU that was lost does not pass for one that
// works. Returns the exit status; 77 where there is none.
int PrintDevice() {
  const absl::StatusOr<Device> device = OpenCudaDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 77;
  }
  absl::StatusOr<std::int64_t> free = FreeDeviceMemory(*device);
  absl::Status status = free.status();
  if (status.ok()) {
    const absl::StatusOr<Stream> stream = Stream::Create(*device);
    const auto memory = DeviceBuffer::Allocate(MemoryKind::kDevice, 4096);
    status = stream.status();
    status.Update(memory.status());
    if (status.ok()) status.Update(stream->Zero(memory->data(), 4096));
    if (status.ok()) status.Update(stream->Synchronize());
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  std::printf(
      "{\"name\": \"%s\", \"compute_capability\": %d, \"num_sms\": %u, "
      "\"memory_bytes\": %lld, \"free_bytes\": %lld, \"driver_version\": %d}\n",
      device->name.c_str(), device->compute_capability, device->num_sms,
      static_cast<long long>(device->memory_bytes), static_cast<long long>(*free),
      device->driver_version);
  return 0;
}

}  // namespace quire::kernels

int main(int argc, char** argv) {
  if (argc == 2 && absl::string_view(argv[1]) == "--device") return quire::kernels::PrintDevice();
  // 50 ms a shape, unless an argument says otherwise.
  char time[] = "--benchmark_min_time=0.05";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, time);
  int count = argc + 1;
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
