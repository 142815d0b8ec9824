// Measures the prefix cache. One benchmark matches and attaches a prompt whose pages are all
// cached. The other frees the pages of a row that ends while a step is in flight.
//
//   bench_kernels --benchmark_filter=PrefixCache

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "benchmark/benchmark.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/prefix/page_hash.h"

namespace quire::cache {
namespace {

constexpr std::uint32_t kTokens = 131072;
constexpr Hash128 kRoot{1, 2};

// Returns a cache in which `tokens` are published under kRoot and not referenced.
std::unique_ptr<CacheManager> MakeCache(const std::vector<std::int32_t>& tokens,
                                        std::vector<PageKey>* keys, std::uint32_t page_size) {
  CacheManagerOptions options;
  options.geometry.num_blocks = 2 * kTokens / page_size;
  options.geometry.num_layers = options.geometry.num_heads = options.geometry.head_size = 1;
  options.geometry.page_size = page_size;
  options.geometry.dtype = DType::kF32;
  options.max_rows = 2;
  options.max_context_tokens = kTokens;
  auto cache = CacheManager::Create(options);
  QUIRE_CHECK(cache.ok());
  const BatchRow row{0};
  QUIRE_CHECK((*cache)->Attach(row, {}, kRoot).ok());
  QUIRE_CHECK((*cache)->Reserve(row, kTokens).ok());
  (*cache)->Publish(row, tokens, keys, kTokens);
  (*cache)->Free(row);
  return *std::move(cache);
}

// Argument: page size.
void BM_PrefixCacheHit(benchmark::State& state) {
  std::vector<std::int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<PageKey> keys;
  const auto cache = MakeCache(tokens, &keys, static_cast<std::uint32_t>(state.range(0)));
  for (auto _ : state) {
    const PrefixMatch match = cache->Match(tokens, keys, kRoot, kTokens);
    QUIRE_CHECK(match.num_tokens == kTokens && cache->Attach(BatchRow{1}, match, kRoot).ok());
    state.PauseTiming();
    cache->Free(BatchRow{1});
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kTokens);
}
BENCHMARK(BM_PrefixCacheHit)->ArgName("page_size")->Arg(64)->Arg(16);

// Argument: pages of the row.
void BM_PrefixCacheReleaseHeld(benchmark::State& state) {
  constexpr std::uint32_t kPageSize = 16;
  const auto pages = static_cast<std::uint32_t>(state.range(0));
  const std::uint32_t num_tokens = pages * kPageSize;
  std::vector<std::int32_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::vector<PageKey> keys;
  const auto cache = MakeCache(tokens, &keys, kPageSize);
  const BatchRow row{1};
  for (auto _ : state) {
    state.PauseTiming();
    const PrefixMatch match = cache->Match(tokens, keys, kRoot, num_tokens);
    QUIRE_CHECK(cache->Attach(row, match, kRoot).ok());
    QUIRE_CHECK(cache->Reserve(row, num_tokens + 1).ok());
    const RowStep step{row, num_tokens, 1};
    cache->PrepareStep(std::span(&step, 1));
    cache->Free(row);
    state.ResumeTiming();
    cache->CompleteStep();
  }
  state.SetItemsProcessed(state.iterations() * pages);
}
BENCHMARK(BM_PrefixCacheReleaseHeld)->ArgName("pages")->Arg(512)->Arg(2048)->Arg(8191);

}  // namespace
}  // namespace quire::cache
