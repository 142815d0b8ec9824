#pragma once

// The metric families of the prefix cache and of its pages.
//
// Place:      part of EngineProbe.
// Invariants: the used, cached and free pages add up to all pages. The counter of cached prompt
//             tokens grows together with the counter of hits.
// Threads:    one thread; lock-free. Scrapes may read the metrics at the same time.
// Lifetime:   the registry outlives it.

#include <array>
#include <cstdint>
#include <string>

#include "base/probe.h"
#include "cache_manager/cache_manager.h"

namespace quire::engine {

enum class EvictionCause : std::uint8_t { kAllocation, kFlush, kInvalidate };

class CacheProbe {
 public:
  CacheProbe(probe::Registry* registry, const probe::Labels& model, std::uint32_t page_size,
             std::uint32_t num_pages, const std::string& kv_dtype);

  // Counts the prefix lookup at the first admission of a request. `prompt_tokens` is 0 if the
  // request does not read the cache.
  void CountPrefixLookup(std::int32_t prompt_tokens, std::int32_t cached_tokens);
  // Updates the metrics of pages. Pages evicted since the last call are counted under
  // `eviction_cause`.
  void Update(const cache::CacheStats& stats, EvictionCause eviction_cause);

 private:
  probe::Registry* const registry_;
  probe::Counter queries_, hits_, cached_prompt_tokens_;
  probe::Gauge usage_, pages_used_, pages_cached_, pages_free_;
  probe::Counter tokens_without_state_;
  probe::Gauge slots_live_, slots_snapshot_, slots_free_;
  std::array<probe::Counter, 3> evicted_;
  // Values that the last Update has counted.
  std::uint64_t evicted_pages_ = 0;
  std::uint64_t counted_without_state_ = 0;
};

}  // namespace quire::engine
