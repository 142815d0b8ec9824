#pragma once

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "cache_manager/pool/state_pool.h"

namespace quire::cache {

// The result of CacheManager::Match. It consists of full pages from the first column on, and
// possibly the beginning of one more page. It is valid until any page is unpublished (eviction,
// Invalidate, Flush) or a snapshot is removed. Attach compares `generation` and rejects an outdated
// match.
struct PrefixMatch {
  std::uint32_t num_tokens = 0;  // full pages * page size + partial_rows
  // Full pages to share, [columns, groups]. A window group may have the null page in columns that
  // no token after the match reads. Attach skips those columns.
  std::vector<BlockId> pages;
  std::vector<BlockId> partial_sources;  // empty, or one page per group to copy from
  std::uint32_t partial_rows = 0;        // number of tokens to copy from the partial sources
  // Number of leading tokens in full pages that are proven finite (FiniteProof).
  std::uint32_t proven_tokens = 0;
  bool is_partial_proven = false;  // true if all partial_sources are proven finite
  std::uint64_t generation = 0;    // PrefixCache::generation() at the time of the match
  // With states: the slot with the state after num_tokens tokens; kNullSlot if num_tokens is 0.
  StateSlot state;
  // With states: number of further tokens in published pages that cannot be reused, because no
  // state follows them.
  std::uint32_t tokens_without_state = 0;
  bool collision = false;  // the match ended at a key that belongs to another history
};

}  // namespace quire::cache
