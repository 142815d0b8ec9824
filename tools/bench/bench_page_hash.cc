// Measures the hashing of prompt tokens to page keys, in tokens per second on one core. Text
// workers hash every prompt.
//
//   bench_kernels --benchmark_filter=PageHash

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "cache_manager/prefix/page_hash.h"

namespace quire::cache {
namespace {

// Arguments: tokens of the prompt, page size.
void BM_PageHash(benchmark::State& state) {
  const auto page_size = static_cast<std::uint32_t>(state.range(1));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(state.range(0)));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7919);
  const HashKey key{{1, 2, 3, 4}};
  for (auto _ : state) {
    benchmark::DoNotOptimize(HashPages(key, Hash128{5, 6}, tokens, page_size));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_PageHash)->ArgNames({"tokens", "page_size"})->Args({8192, 64})->Args({8192, 16});

}  // namespace
}  // namespace quire::cache
