#pragma once

// Shared helpers of the host-side cache tests: tiny geometries, token lists, a weak hash, and
// access to internals for breaking an invariant on purpose.

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/check.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/finite_proof.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "cache_manager/pool/state_pool.h"
#include "cache_manager/prefix/prefix_cache.h"
#include "cache_manager/prefix_index.h"
#include "cache_manager/row_pages.h"
#include "cache_manager/row_states.h"
#include "cache_manager/step_work.h"

namespace quire::cache {

using Tokens = std::vector<std::int32_t>;

inline constexpr std::uint32_t kTestPageSize = 16;

// Random numbers with a seed that a failing test prints.
class Random {
 public:
  Random() : seed_(std::random_device{}()), engine_(seed_) {}
  explicit Random(std::uint32_t seed) : seed_(seed), engine_(seed) {}
  std::uint32_t seed() const { return seed_; }
  // Uniform in [0, bound). REQUIRES: bound > 0.
  std::uint32_t Below(std::size_t bound) {
    return static_cast<std::uint32_t>(engine_() % static_cast<std::uint32_t>(bound));
  }
  bool OneIn(std::uint32_t n) { return Below(n) == 0; }

 private:
  std::uint32_t seed_;
  std::mt19937 engine_;
};

inline KvGeometry TinyGeometry(std::uint32_t num_blocks) {
  KvGeometry geometry;
  geometry.num_blocks = num_blocks;
  geometry.num_layers = 1;
  geometry.page_size = kTestPageSize;
  geometry.num_heads = 1;
  geometry.head_size = 1;
  geometry.dtype = DType::kF32;
  return geometry;
}

inline CacheManagerOptions TinyOptions(std::uint32_t num_blocks, std::uint32_t max_rows = 8,
                                       std::uint32_t max_context_tokens = 256) {
  CacheManagerOptions options;
  options.geometry = TinyGeometry(num_blocks);
  options.max_rows = max_rows;
  options.max_context_tokens = max_context_tokens;
  options.hash_key.words = {1, 2, 3, 4};
  return options;
}

// Creates one group per window. 0 means a group without window.
inline CacheManagerOptions WithWindows(CacheManagerOptions options,
                                       std::initializer_list<std::uint32_t> windows) {
  options.groups.clear();
  for (const std::uint32_t window : windows) options.groups.push_back({.window = window});
  options.max_row_overlap_tokens = 2 * kTestPageSize;
  return options;
}

inline std::unique_ptr<CacheManager> MakeCache(const CacheManagerOptions& options) {
  auto cache = CacheManager::Create(options);
  QUIRE_CHECK(cache.ok());
  return *std::move(cache);
}

// Returns first, first + 1, ...
inline Tokens Count(std::size_t size, std::int32_t first = 0) {
  Tokens tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline Tokens operator+(Tokens left, const Tokens& right) {
  for (const std::int32_t token : right) left.push_back(token);
  return left;
}

// Returns one page per group, for one group.
inline std::array<BlockId, 1> Pages(BlockId page) {
  return {page};
}

// A hash with only sixteen keys, so that keys collide.
inline PageKey WeakPageHash(const HashKey& key, const Hash128& parent,
                            std::span<const std::int32_t> tokens) {
  return {.lo = HashPage(key, parent, tokens).lo % 16, .hi = 0};
}

inline std::vector<PageKey> KeysOf(const CacheManagerOptions& options, const Hash128& root,
                                   const Tokens& tokens) {
  std::vector<PageKey> keys;
  const std::size_t page_size = options.geometry.page_size;
  for (std::size_t begin = 0; begin + page_size <= tokens.size(); begin += page_size) {
    keys.push_back(options.page_hash(options.hash_key, keys.empty() ? root : keys.back(),
                                     std::span(tokens).subspan(begin, page_size)));
  }
  return keys;
}

struct BlockPoolPeer {
  using Page = BlockPool::Page;
  static Page& page(BlockPool& pool, std::uint32_t id) { return pool.pages_[id]; }
  static auto& free_list(BlockPool& pool) { return pool.free_; }
  static auto& cached_list(BlockPool& pool) { return pool.cached_; }
};

struct StatePoolPeer {
  static auto& slot(StatePool& pool, std::uint32_t id) { return pool.slots_[id]; }
};

struct LookupTablePeer {
  static std::uint32_t& entry(LookupTable& table, std::uint32_t row, std::uint32_t column) {
    return *table.entry(BatchRow{row}, column);
  }
  static std::uint32_t& first_column(LookupTable& table, std::uint32_t row) {
    return table.first_column_[row];
  }
  static std::uint32_t& end_column(LookupTable& table, std::uint32_t row) {
    return table.end_column_[row];
  }
};

struct PrefixCachePeer {
  using Kind = PrefixCache::Kind;
  static auto& node(PrefixCache& cache, NodeId node) { return cache.at(node); }
  static auto& index(PrefixCache& cache) { return cache.index_; }
  static auto& roots(PrefixCache& cache) { return cache.roots_; }
  static std::int32_t& token(PrefixCache& cache, NodeId node, std::uint32_t at) {
    return cache.tokens_[node.value() * cache.options_.page_size + at];
  }
  static BlockId& page(PrefixCache& cache, NodeId node, std::size_t group = 0) {
    return cache.page(node, group);
  }
  static std::size_t num_unused(const PrefixCache& cache) { return cache.unused_slots_.size(); }
  static std::size_t num_slots(const PrefixCache& cache) { return cache.nodes_.size(); }
  // REQUIRES: the cache is empty.
  static void LimitSlots(PrefixCache& cache, std::size_t slots) {
    while (cache.nodes_.size() > slots) cache.nodes_.pop_back();
    std::erase_if(cache.unused_slots_, [&](NodeId slot) { return slot.value() >= slots; });
  }
};

struct StepWorkPeer {
  static auto& taken(StepWork& work) { return work.next_step_; }
  static auto& in_flight(StepWork& work) { return work.in_flight_; }
  static std::size_t& num_clears_taken(StepWork& work) { return work.num_pages_being_cleared_; }
};

struct RowPagesPeer {
  static LookupTable& table(RowPages& rows, std::size_t group) { return rows.tables_[group]; }
};

struct RowStatesPeer {
  static auto& row(RowStates& states, std::uint32_t row) { return states.rows_[row]; }
  static std::uint32_t& state_out(RowStates& states, std::uint32_t row) {
    return states.state_out_[row];
  }
  static std::uint32_t& snapshot_slot(RowStates& states, std::uint32_t row) {
    return states.snapshot_slot_[row];
  }
};

struct FiniteProofPeer {
  static auto& row(FiniteProof& proof, std::uint32_t row) { return proof.proofs_[row]; }
};

struct PrefixIndexPeer {
  static auto& row(PrefixIndex& index, std::uint32_t row) { return index.publications_[row]; }
};

struct CacheManagerPeer {
  static BlockPool& pool(CacheManager& cache) { return cache.pool_; }
  static StatePool& states(CacheManager& cache) { return cache.state_pool_; }
  static RowStates& row_states(CacheManager& cache) { return cache.states_; }
  static PrefixCache& prefixes(CacheManager& cache) { return cache.prefixes_; }
  static StepWork& step_work(CacheManager& cache) { return cache.step_work_; }
  static LookupTable& table(CacheManager& cache, std::size_t group) {
    return RowPagesPeer::table(cache.rows_, group);
  }
  static auto& proof(CacheManager& cache, std::uint32_t row) {
    return FiniteProofPeer::row(cache.proof_, row);
  }
  static auto& publication(CacheManager& cache, std::uint32_t row) {
    return PrefixIndexPeer::row(cache.index_, row);
  }
  static BlockId page(CacheManager& cache, BatchRow row, std::uint32_t column,
                      std::size_t group = 0) {
    return table(cache, group).page(row, column);
  }
};

}  // namespace quire::cache
