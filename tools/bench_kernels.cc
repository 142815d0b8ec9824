// Time and rates of the CPU kernels beside the ruler of the machine, one process, so that a figure
// on a busy machine is read as a share of what the machine gave at that moment:
//
//   bench_kernels --benchmark_filter='DramRead|Linear'
//
// bytes_per_second counts weights (linear), K and V (attention decode) or logits (sampler) once;
// FLOP/s counts a multiply-add as two.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/ops.h"

namespace quire::kernels {
namespace {

struct Bench {
  explicit Bench(std::int64_t threads)
      : pool(static_cast<int>(threads)), backend(*Backend::Create(Device::Cpu(), &pool)) {}
  ThreadPool pool;
  Backend backend;
};

std::vector<float> Random(std::size_t count, float deviation = 1.0f) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  // Repeats after a while: generation would take longer than the measurement.
  const std::size_t fresh = std::min<std::size_t>(count, 1 << 16);
  for (std::size_t i = 0; i < fresh; ++i) values[i] = normal(generator);
  for (std::size_t i = fresh; i < count; ++i) values[i] = values[i % fresh];
  return values;
}

double Total(const benchmark::State& state, double amount) {
  return amount * static_cast<double>(state.iterations());
}

// B: 512 MB read by all threads.
void BM_DramRead(benchmark::State& state) {
  Bench bench(state.range(0));
  const std::vector<std::uint64_t> data(std::size_t{64} << 20, 1);
  const auto count = static_cast<std::int64_t>(data.size());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(state.range(0)) * 8);
  for (auto _ : state) {
    bench.backend.ParallelFor(count, 1, [&](std::int64_t begin, std::int64_t end, int part) {
      sums[static_cast<std::size_t>(part) * 8] =
          std::accumulate(data.begin() + begin, data.begin() + end, std::uint64_t{0});
    });
    benchmark::DoNotOptimize(sums.data());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, static_cast<double>(count) * 8)));
}
BENCHMARK(BM_DramRead)->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();

// Arguments: dtype, N, K, rows, threads.
void BM_Linear(benchmark::State& state) {
  Bench bench(state.range(4));
  const auto dtype = static_cast<DType>(state.range(0));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  const auto rows = static_cast<std::uint32_t>(state.range(3));
  const auto w = Random(std::size_t{n} * k, 0.05f);
  std::vector<BF16> narrow(dtype == DType::kBF16 ? w.size() : 0);
  for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = BF16::FromFloat(w[i]);
  const void* const source = narrow.empty() ? static_cast<const void*>(w.data()) : narrow.data();
  // Matrices that together pass every cache, used in turn; shapes of up to 4 MB stay in theirs.
  const std::size_t bytes = std::size_t{n} * k * static_cast<std::size_t>(DTypeSize(dtype));
  const std::size_t copies = bytes < (4u << 20) ? 1 : (std::size_t{192} << 20) / bytes + 1;
  std::vector<PackedLinear> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(*PackLinearWeight(bench.backend, source, dtype, n, k));
  }
  const auto x = Random(std::size_t{rows} * k);
  std::vector<float> y(std::size_t{rows} * n);
  std::size_t next = 0;
  for (auto _ : state) {
    QUIRE_CHECK(Linear(bench.backend, {.x = x.data(),
                                       .weight = &weights[next++ % copies],
                                       .y = y.data(),
                                       .x_stride = k,
                                       .y_stride = n,
                                       .num_rows = rows})
                    .ok());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, static_cast<double>(bytes))));
  state.counters["FLOP/s"] =
      benchmark::Counter(Total(state, 2.0 * n * k * rows), benchmark::Counter::kIsRate);
}
void LinearShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"dtype", "n", "k", "m", "threads"})->UseRealTime();
  for (const std::int64_t threads : {1, 2}) {
    for (const std::int64_t rows : {1, 8, 64, 512}) {
      benchmark->Args({static_cast<std::int64_t>(DType::kBF16), 5632, 2048, rows, threads});
    }
    benchmark->Args({static_cast<std::int64_t>(DType::kF32), 5632, 2048, 1, threads});
    for (const std::int64_t rows : {1, 8}) {  // the embedded model's gate and up
      benchmark->Args({static_cast<std::int64_t>(DType::kBF16), 1536, 256, rows, threads});
    }
  }
}
BENCHMARK(BM_Linear)->Apply(LinearShapes);

// Packing 128 MB of weights, as at load.
void BM_Pack(benchmark::State& state) {
  Bench bench(state.range(0));
  constexpr std::uint32_t kN = 8192, kK = 8192;
  const std::vector<BF16> w(std::size_t{kN} * kK, BF16{0x3c00});
  for (auto _ : state) {
    benchmark::DoNotOptimize(PackLinearWeight(bench.backend, w.data(), DType::kBF16, kN, kK));
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, 2.0 * kN * kK)));
}
BENCHMARK(BM_Pack)->Arg(1)->Arg(2)->ArgName("threads")->UseRealTime();

// Arguments: sequences, cached tokens, new rows per sequence, threads. bf16 pages, 16 / 4 heads
// of 64.
void BM_Attention(benchmark::State& state) {
  Bench bench(state.range(3));
  constexpr std::uint32_t kHeads = 16, kKvHeads = 4, kHeadSize = 64, kPage = 16;
  const auto batch = static_cast<std::uint32_t>(state.range(0));
  const auto cached = static_cast<std::uint32_t>(state.range(1));
  const auto rows = static_cast<std::uint32_t>(state.range(2));
  const std::uint32_t pages = (cached + rows + kPage - 1) / kPage;
  const std::uint32_t stride = (pages + 7) / 8 * 8 + 16;
  cache::KvGeometry geometry{.num_blocks = batch * pages + 1,
                             .num_layers = 1,
                             .page_size = kPage,
                             .num_heads = kKvHeads,
                             .head_size = kHeadSize,
                             .dtype = DType::kBF16};
  const auto pool =
      *DeviceBuffer::Allocate(MemoryKind::kHost, geometry.num_blocks * geometry.page_bytes());
  const auto noise = Random(static_cast<std::size_t>(pool.size_bytes()) / 2);
  for (std::size_t i = 0; i < noise.size(); ++i) {
    static_cast<BF16*>(pool.data())[i] = BF16::FromFloat(noise[i]);
  }
  const auto table = *DeviceBuffer::Allocate(MemoryKind::kHost, std::int64_t{batch} * stride * 4);
  auto* const ids = static_cast<std::uint32_t*>(table.data());
  std::vector<std::uint32_t> lengths(batch, cached), offsets(batch + 1);
  for (std::uint32_t b = 0; b < batch; ++b) {
    offsets[b + 1] = offsets[b] + rows;
    for (std::uint32_t i = 0; i < pages; ++i) ids[b * stride + i] = 1 + i * batch + b;
  }
  const std::uint32_t keys = cached + rows;
  const auto collection = *MakeKvCollection(geometry, pool.data(),
                                            {ids, lengths.data(), stride, batch, rows, keys, keys});
  const AnyKvView k = KeyView(collection, 0);
  const AnyKvView v = ValueView(collection, 0);
  const auto q = Random(std::size_t{batch} * rows * kHeads * kHeadSize);
  std::vector<float> out(q.size());
  for (auto _ : state) {
    QUIRE_CHECK(PagedAttention(bench.backend, {.keys = &k,
                                               .values = &v,
                                               .q = q.data(),
                                               .out = out.data(),
                                               .row_offsets = offsets.data(),
                                               .q_stride = kHeads * kHeadSize,
                                               .out_stride = kHeads * kHeadSize,
                                               .batch_size = batch,
                                               .num_heads = kHeads,
                                               .scale = 0.125f})
                    .ok());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(
      static_cast<std::int64_t>(Total(state, 2.0 * 2 * batch * keys * kKvHeads * kHeadSize)));
  const double seen = rows * (cached + (rows + 1) / 2.0);
  state.counters["FLOP/s"] = benchmark::Counter(
      Total(state, 4.0 * batch * seen * kHeads * kHeadSize), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Attention)
    ->ArgNames({"batch", "cached", "rows", "threads"})
    ->Args({1, 4096, 1, 1})
    ->Args({1, 4096, 1, 2})
    ->Args({32, 1024, 1, 2})
    ->Args({1, 0, 512, 1})
    ->Args({1, 0, 512, 2})
    ->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  Bench bench(1);
  const auto hidden = static_cast<std::uint32_t>(state.range(0));
  const auto x = Random(hidden);
  std::vector<float> y(hidden);
  for (auto _ : state) {
    QUIRE_CHECK(RmsNorm(bench.backend, {.x = x.data(),
                                        .weight = x.data(),
                                        .y = y.data(),
                                        .x_stride = hidden,
                                        .y_stride = hidden,
                                        .num_rows = 1,
                                        .hidden = hidden,
                                        .epsilon = 1e-5f})
                    .ok());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, hidden * 8.0)));
}
BENCHMARK(BM_RmsNorm)->Arg(256)->Arg(4096)->ArgName("hidden");

void BM_SiluProduct(benchmark::State& state) {
  Bench bench(1);
  const auto columns = static_cast<std::uint32_t>(state.range(0));
  const auto x = Random(columns);
  std::vector<float> y(columns);
  for (auto _ : state) {
    QUIRE_CHECK(SiluProduct(bench.backend,
                            {x.data(), x.data(), y.data(), columns, columns, columns, 1, columns})
                    .ok());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(Total(state, columns)));
}
BENCHMARK(BM_SiluProduct)->Arg(768)->Arg(11008)->ArgName("columns");

// Arguments: vocabulary, top_k, top_p in percent; one row, one thread.
void BM_Sample(benchmark::State& state) {
  Bench bench(1);
  const auto vocab = static_cast<std::uint32_t>(state.range(0));
  const auto logits = Random(vocab, 3.0f);
  SamplingRow row{.logits = logits.data(),
                  .temperature = 0.7f,
                  .top_p = static_cast<float>(state.range(2)) / 100,
                  .top_k = static_cast<std::int32_t>(state.range(1)),
                  .text_vocab = vocab};
  SampledRow sampled;
  for (auto _ : state) {
    ++row.position;
    QUIRE_CHECK(Sample(bench.backend, {{&row, 1}, {&sampled, 1}, vocab}).ok());
    benchmark::DoNotOptimize(sampled);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, vocab * 4.0)));
}
BENCHMARK(BM_Sample)
    ->ArgNames({"vocab", "k", "p"})
    ->Args({4096, 40, 95})
    ->Args({4096, 0, 100})
    ->Args({32000, 40, 95})
    ->Args({32000, 0, 95})
    ->Args({32000, 0, 100})
    ->Args({128256, 0, 95});

}  // namespace
}  // namespace quire::kernels

BENCHMARK_MAIN();
