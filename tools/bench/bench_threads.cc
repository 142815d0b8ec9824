// Measures one fork and join of the thread pool with empty work. Between two runs the caller is
// busy for `gap_us`, as between the ops of a step. Workers spin for up to the pool's spin time
// before they sleep.
//
//   bench_kernels --benchmark_filter=ForkJoin

#include <chrono>

#include "base/machine.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"

namespace quire {
namespace {

using BenchClock = std::chrono::steady_clock;

// Arguments: threads, microseconds between two runs.
void BM_ForkJoin(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  ThreadPool pool(threads, {.cpus = Machine::Detect().CpusToBind(threads)});
  const std::chrono::microseconds gap(state.range(1));
  for (auto _ : state) {
    for (const auto end = BenchClock::now() + gap; BenchClock::now() < end;) {
    }
    const auto begin = BenchClock::now();
    pool.Run([](int) {});
    state.SetIterationTime(std::chrono::duration<double>(BenchClock::now() - begin).count());
  }
}
BENCHMARK(BM_ForkJoin)
    ->ArgNames({"threads", "gap_us"})
    ->Args({2, 0})
    ->Args({2, 10})
    ->Args({2, 30})
    ->Args({2, 200})
    ->Iterations(5000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quire
