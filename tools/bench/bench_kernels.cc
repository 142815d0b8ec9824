// Measures the CPU kernels. Rates are also reported as fractions of roofline probes of the same
// process, because identical runs on shared hosts differ:
//
//   bench_kernels --benchmark_filter='RooflineProbes|Linear'
//   bench_kernels --benchmark_filter=Linear --isa=avx2
//
// bytes_per_second counts weights with their scales (linear), K and V (attention) or logits
// (sampler) once. FLOP/s counts a multiply-add as two. share_bandwidth, share_fma and share_int8
// are fractions of the probes of roofline_probes.h with the same number of threads.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/machine.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/ops.h"
#include "tools/bench/roofline_probes.h"

namespace quire::kernels {
namespace {

struct Bench {
  explicit Bench(std::int64_t threads, CpuActivations activations = CpuActivations::kInt8)
      : pool(static_cast<int>(threads)),
        backend(*Backend::Create(Device::Cpu(), &pool, activations)) {}
  ThreadPool pool;
  Backend backend;
};

std::vector<float> Random(std::size_t count, float deviation = 1.0f) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  // Repeats a block, because generating all values would take longer than the measurement.
  const std::size_t fresh = std::min<std::size_t>(count, 1 << 16);
  for (std::size_t i = 0; i < fresh; ++i) values[i] = normal(generator);
  for (std::size_t i = fresh; i < count; ++i) values[i] = values[i % fresh];
  return values;
}

double Total(const benchmark::State& state, double amount) {
  return amount * static_cast<double>(state.iterations());
}

// The work of a kernel per iteration, reported as fractions of the roofline probes.
struct Work {
  double bytes = 0;  // read from memory
  double float_ops = 0;
  double int8_ops = 0;
};
void CountWork(benchmark::State& state, const Work& work, std::int64_t threads) {
  const auto count = static_cast<int>(threads);
  const auto share = [&](const char* name, double amount, double roofline_probe) {
    if (amount <= 0 || roofline_probe <= 0) return;
    state.counters[name] =
        benchmark::Counter(Total(state, amount) / roofline_probe, benchmark::Counter::kIsRate);
  };
  state.SetBytesProcessed(static_cast<std::int64_t>(Total(state, work.bytes)));
  if (work.float_ops + work.int8_ops > 0) {
    const char* const name = work.int8_ops > 0 ? "OP/s" : "FLOP/s";
    state.counters[name] = benchmark::Counter(Total(state, work.float_ops + work.int8_ops),
                                              benchmark::Counter::kIsRate);
  }
  share("share_bandwidth", work.bytes, roofline_probes::DramRead(count).mean);
  share("share_fma", work.float_ops, roofline_probes::FloatPeak(count));
  share("share_int8", work.int8_ops, roofline_probes::Int8Peak(count));
}

// Reports the roofline probes themselves.
void BM_RooflineProbes(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  for (auto _ : state) benchmark::ClobberMemory();
  const roofline_probes::ReadRate read = roofline_probes::DramRead(threads);
  state.counters["read_bytes/s"] = read.mean;
  state.counters["best_read_bytes/s"] = read.best;
  state.counters["f32_FLOP/s"] = roofline_probes::FloatPeak(threads);
  state.counters["int8_OP/s"] = roofline_probes::Int8Peak(threads);
  state.SetLabel(roofline_probes::Int8PeakName());
}
BENCHMARK(BM_RooflineProbes)
    ->Apply([](benchmark::internal::Benchmark* bench) {
      // A CPU quota may allow fewer threads than there are cores.
      const Machine machine = Machine::Detect();
      for (const int threads : std::set<int>{1, 2, machine.physical_cores(),
                                             static_cast<int>(machine.core_cpus().size())}) {
        bench->Arg(threads);
      }
    })
    ->ArgName("threads")
    ->Iterations(1);

// Times products of `rows` random rows. The matrices have one shape and are used in rotation.
void TimeLinear(benchmark::State& state, const Backend& backend,
                const std::vector<PackedLinear>& weights, std::uint32_t rows) {
  const std::uint32_t n = weights[0].n(), k = weights[0].k();
  const auto x = Random(std::size_t{rows} * k);
  std::vector<float> y(std::size_t{rows} * n);
  std::size_t next = 0;
  for (auto _ : state) {
    QUIRE_CHECK(Linear(backend, {.x = x.data(),
                                 .weight = &weights[next++ % weights.size()],
                                 .y = y.data(),
                                 .x_stride = k,
                                 .y_stride = n,
                                 .num_rows = rows})
                    .ok());
    benchmark::ClobberMemory();
  }
}

// Returns the number of matrices of `bytes` bytes that together are larger than any cache, or 1 for
// a matrix of less than 4 MiB, which stays in the caches.
std::size_t NumMatrices(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes < (4 << 20) ? 1 : (192 << 20) / bytes + 1);
}

// Arguments: dtype, N, K, rows, threads.
template <CpuActivations kActivations>
void PlainLinear(benchmark::State& state) {
  Bench bench(state.range(4), kActivations);
  const auto dtype = static_cast<DType>(state.range(0));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  const auto rows = static_cast<std::uint32_t>(state.range(3));
  const auto w = Random(std::size_t{n} * k, 0.05f);
  std::vector<BF16> narrow(dtype == DType::kBF16 ? w.size() : 0);
  for (std::size_t i = 0; i < narrow.size(); ++i) narrow[i] = BF16::FromFloat(w[i]);
  const void* const source = narrow.empty() ? static_cast<const void*>(w.data()) : narrow.data();
  const std::int64_t bytes = std::int64_t{n} * k * DTypeSize(dtype);
  std::vector<PackedLinear> weights;
  while (weights.size() < NumMatrices(bytes)) {
    weights.push_back(*PackLinearWeight(bench.backend, source, dtype, n, k));
  }
  TimeLinear(state, bench.backend, weights, rows);
  CountWork(state, {.bytes = static_cast<double>(bytes), .float_ops = 2.0 * n * k * rows},
            state.range(4));
}
void LinearShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"dtype", "n", "k", "m", "threads"})->UseRealTime();
  for (const std::int64_t threads : {1, 2}) {
    for (const std::int64_t rows : {1, 8, 32, 64, 512}) {
      benchmark->Args({static_cast<std::int64_t>(DType::kBF16), 5632, 2048, rows, threads});
    }
    benchmark->Args({static_cast<std::int64_t>(DType::kF32), 5632, 2048, 1, threads});
    for (const std::int64_t rows : {1, 8}) {  // gate and up of the embedded model
      benchmark->Args({static_cast<std::int64_t>(DType::kBF16), 1536, 256, rows, threads});
    }
  }
}
BENCHMARK(PlainLinear<CpuActivations::kF32>)->Name("BM_Linear")->Apply(LinearShapes);
BENCHMARK(PlainLinear<CpuActivations::kBF16>)->Name("BM_LinearBF16")->Apply(LinearShapes);

// Arguments: bits, group (0: one scale per output feature), N, K, rows, threads. Integer weights,
// with or without zero points. The time includes the quantization or rounding of activations.
template <bool kHasZeroPoints, bool kHasActOrder = false,
          CpuActivations kActivations = CpuActivations::kInt8>
void IntLinear(benchmark::State& state) {
  Bench bench(state.range(5), kActivations);
  const auto n = static_cast<std::uint32_t>(state.range(2));
  const auto k = static_cast<std::uint32_t>(state.range(3));
  const auto rows = static_cast<std::uint32_t>(state.range(4));
  const auto format = state.range(0) == 4 ? WeightFormat::kInt4 : WeightFormat::kInt8;
  const auto group = state.range(1) == 0 ? k : static_cast<std::uint32_t>(state.range(1));
  const QuantizedShape shape{.format = format,
                             .n = n,
                             .k = k,
                             .group = group,
                             .has_min = kHasZeroPoints,
                             .has_zero_points = kHasZeroPoints,
                             .has_act_order = kHasActOrder};
  std::vector<std::uint32_t> order(kHasActOrder ? k : 0);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const auto row = Random(k, 0.05f);
  const std::int64_t bytes = QuantizedBytes(shape);
  std::vector<PackedLinear> weights;
  while (weights.size() < NumMatrices(bytes)) {
    weights.push_back(*PackQuantizedRows(
        bench.backend, shape,
        [&](std::uint32_t, const QuantizedRow& out) {
          QuantizeRow(format, group, row, {out.q, out.scales, {}});
          const int half = format == WeightFormat::kInt4 ? 8 : 128;
          for (std::int8_t& q : out.q)
            q = static_cast<std::int8_t>(q + (kHasZeroPoints ? half : 0));
          std::fill(out.mins.begin(), out.mins.end(), -static_cast<float>(half));
        },
        order));
  }
  bench.backend.op_workspace().Reserve(
      static_cast<std::size_t>(QuantizedLinearScratchBytes(rows, k, kHasActOrder)));
  TimeLinear(state, bench.backend, weights, rows);
  const double ops = 2.0 * n * k * rows;
  Work work{.bytes = static_cast<double>(bytes)};
  if (kActivations == CpuActivations::kBF16) {
    work.float_ops = ops;
  } else {
    work.int8_ops = ops;
  }
  CountWork(state, work, state.range(5));
}
void IntLinearShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"bits", "group", "n", "k", "m", "threads"})->UseRealTime();
  for (const auto& [bits, group] : {std::pair{8, 0}, std::pair{8, 32}, std::pair{4, 32}}) {
    for (const std::int64_t rows : {1, 8, 32, 512}) {
      benchmark->Args({bits, group, 5632, 2048, rows, 2});
    }
    benchmark->Args({bits, group, 5632, 2048, 1, 1});
    benchmark->Args({bits, group, 5632, 2048, 512, 1});
  }
}
BENCHMARK(IntLinear<false>)->Name("BM_IntLinear")->Apply(IntLinearShapes);
BENCHMARK(IntLinear<false, false, CpuActivations::kBF16>)
    ->Name("BM_IntLinearBF16")
    ->Apply(IntLinearShapes);
BENCHMARK(IntLinear<true>)
    ->Name("BM_IntLinearZeros")
    ->ArgNames({"bits", "group", "n", "k", "m", "threads"})
    ->UseRealTime()
    ->ArgsProduct({{4}, {32, 128}, {5632}, {2048}, {1, 512}, {2}});

// With an act-order permutation of the inputs (GPTQ).
BENCHMARK(IntLinear<true, true>)
    ->Name("BM_IntLinearOrder")
    ->ArgNames({"bits", "group", "n", "k", "m", "threads"})
    ->UseRealTime()
    ->ArgsProduct({{4}, {128}, {5632}, {2048}, {1, 512}, {2}});

// e4m3 weights with a scale per 128 inputs, or per output (group 0). Arguments: group, N, K, rows,
// threads.
void BM_Fp8Linear(benchmark::State& state) {
  Bench bench(state.range(4));
  const auto n = static_cast<std::uint32_t>(state.range(1));
  const auto k = static_cast<std::uint32_t>(state.range(2));
  const auto rows = static_cast<std::uint32_t>(state.range(3));
  const auto group = state.range(0) == 0 ? k : static_cast<std::uint32_t>(state.range(0));
  const Fp8Shape shape{.n = n, .k = k, .group = group};
  const auto row = Random(k, 50.0f);
  const std::int64_t bytes = Fp8Bytes(shape);
  std::vector<PackedLinear> weights;
  while (weights.size() < NumMatrices(bytes)) {
    weights.push_back(*PackFp8Rows(bench.backend, shape, [&](std::uint32_t, const Fp8Row& out) {
      for (std::uint32_t j = 0; j < k; ++j) out.codes[j] = F8E4M3::FromFloat(row[j]).bits;
      std::fill(out.scales.begin(), out.scales.end(), 1e-3f);
    }));
  }
  TimeLinear(state, bench.backend, weights, rows);
  CountWork(state, {.bytes = static_cast<double>(bytes), .float_ops = 2.0 * n * k * rows},
            state.range(4));
}
BENCHMARK(BM_Fp8Linear)
    ->ArgNames({"group", "n", "k", "m", "threads"})
    ->UseRealTime()
    ->ArgsProduct({{0, 128}, {5632}, {2048}, {1, 8, 32, 512}, {2}});

// Packs 128 MB of weights, as loading does.
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
    QUIRE_CHECK(GatedProduct(bench.backend,
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

// Runs the benchmarks. --isa=NAME selects the instruction set, as device.cpu.isa does.
int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  absl::string_view isa = argc > 1 ? argv[1] : "";
  if (absl::ConsumePrefix(&isa, "--isa=")) {
    argv[1] = argv[0];
    ++argv;
    --argc;
  } else {
    isa = "auto";
  }
  if (const absl::Status selected = quire::kernels::SelectCpuIsa(isa); !selected.ok()) {
    std::cerr << selected.message() << "\n";
    return 1;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
