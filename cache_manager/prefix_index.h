#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/keyed_hash.h"
#include "base/strong_id.h"
#include "cache_manager/cache_manager_options.h"
#include "cache_manager/finite_proof.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/prefix/page_hash.h"
#include "cache_manager/prefix/prefix_cache.h"
#include "cache_manager/prefix_match.h"
#include "cache_manager/row_pages.h"

namespace quire::cache {

struct FlushCounts {
  std::uint32_t freed_pages = 0;
  std::uint32_t retained_pages = 0;  // unpublished, but still referenced by rows
};

struct LookupCounts {
  std::uint64_t hit_tokens = 0;
  std::uint64_t queried_tokens = 0;
  std::uint64_t tokens_without_state = 0;
  std::uint64_t collisions = 0;  // keys that belong to another history, in lookups and in Publish
};

// Matches token histories against published pages and publishes the pages of rows.
//
// Place:      above PrefixCache, RowPages and FiniteProof; below CacheManager.
// Invariants: in each row and group the pages with nodes come first, and each of their nodes is a
//             child of the node before it. The pages of one column have the same node. So in groups
//             without window, a row that references a published page also references all earlier
//             pages of that page's history. See CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   destroyed before the objects passed to the constructor.
class PrefixIndex {
 public:
  PrefixIndex(const CacheManagerOptions& options, BlockPool* pool, PrefixCache* prefixes,
              RowPages* rows, FiniteProof* proof);

  // CacheManager describes the functions of the same names.
  PrefixMatch Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                    const Hash128& root, std::uint32_t max_tokens, bool may_copy) const;
  void CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens);
  void Publish(BatchRow row, std::span<const std::int32_t> tokens, std::vector<PageKey>* keys,
               std::uint32_t computed_tokens);
  void SetPublish(BatchRow row, bool enabled);
  void SetPartialPageReuse(bool enabled) { partial_page_reuse_ = enabled; }
  FlushCounts Flush();
  void Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                  std::span<const PageKey> keys, std::uint32_t first_token);

  // Returns ABORTED if the match is outdated.
  absl::Status CheckCurrent(const PrefixMatch& match) const;
  // Records that the row was attached to `columns` published columns and that it publishes under
  // `root`.
  void Attach(BatchRow row, const Hash128& root, std::uint32_t columns);
  // Records that the row `child` was forked and shares the first `shared_columns` columns of
  // `parent`.
  void Fork(BatchRow parent, BatchRow child, std::uint32_t shared_columns);
  void ForgetRow(BatchRow row);
  // Publishes the full pages that have keys. With `keeps_tail`, also publishes the tokens after
  // them, up to `computed_tokens`, as a partial child. Returns the node whose history is [0,
  // computed_tokens) and that can own the row's snapshot, or kNoNode if there is none.
  NodeId PublishWithTail(BatchRow row, std::span<const std::int32_t> tokens,
                         std::span<const PageKey> keys, std::uint32_t computed_tokens,
                         bool keeps_tail);
  // True if the row may publish further pages.
  bool CanPublish(BatchRow row);
  // Returns the node of the row's first `columns` columns, or kNoNode if they are not published.
  NodeId PublishedNode(BatchRow row, std::uint32_t columns) const;
  // Removes the tentative snapshots (those not proven finite) from the nodes of a history.
  void DropTentativeStates(const Hash128& root, std::span<const std::int32_t> tokens,
                           std::span<const PageKey> keys);
  const Hash128& root(BatchRow row) const { return publications_[row.value()].root; }
  // Finds the first column of the row's history, at or after `first_token`, that is not proven
  // finite. Unpublishes that column and all that continue it. Returns the column.
  std::uint32_t Invalidate(BatchRow row, std::span<const std::int32_t> tokens,
                           std::span<const PageKey> keys, std::uint32_t first_token);
  // Returns the last published column of the row (0 if none is published yet), or the maximum value
  // if the row cannot publish. The row keeps its pages from that column on even if they are outside
  // its windows, because the next page is published as a child of that column's node.
  std::uint32_t FirstKeptColumn(BatchRow row);

  const LookupCounts& lookup_counts() const { return counts_; }
  absl::Status CheckIntegrity() const;

 private:
  friend struct PrefixIndexPeer;

  struct Publication {
    Hash128 root;
    bool is_attached = false;  // root is valid
    bool may_publish = true;
    bool is_blocked = false;          // the row can publish no more pages
    std::uint32_t num_published = 0;  // leading columns known to have nodes
  };

  Publication& at(BatchRow row);
  // Returns the parent of a node for `column`. Returns kNoNode if the parent is a root that does
  // not exist yet, or if the row does not hold the previous column.
  NodeId NodeBefore(BatchRow row, std::uint32_t column) const;
  // Appends to match->pages the pages of the longest prefix of `tokens` that every group can use.
  // Returns the node of the last of these pages, or the root node (kNoNode without one) if there is
  // no such page.
  NodeId MatchPages(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                    const Hash128& root, PrefixMatch* match) const;
  // Shortens the match to the last position that has a snapshot. If that position is inside a page,
  // sets the partial sources of the match. `last` is the node of the last matched page.
  void LimitToState(std::span<const std::int32_t> tokens, NodeId last, bool may_copy,
                    PrefixMatch* match) const;
  void PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                      std::span<const PageKey> keys, std::uint32_t full_pages);
  bool PublishColumn(BatchRow row, std::uint32_t column, std::span<const std::int32_t> page_tokens,
                     const PageKey& key);
  // Replaces the column's pages by those of `node`, which has the same history. In groups where the
  // node has no page, adds the column's page to the node.
  void Merge(BatchRow row, std::uint32_t column, NodeId node);
  // Publishes the partial page after the row's full pages as a partial child, and returns its node.
  // If a child with these tokens exists already, returns that child in a model with states, and
  // kNoNode in other models. Also returns kNoNode if the page cannot be published.
  NodeId PublishTail(BatchRow row, std::span<const std::int32_t> tokens,
                     std::uint32_t computed_tokens);
  absl::Status CheckRow(BatchRow row, std::size_t group) const;

  const bool prefix_caching_;
  const bool has_states_;
  bool partial_page_reuse_;
  const HashKey hash_key_;
  const PageHashFunction page_hash_;
  const std::uint32_t page_size_;
  BlockPool* const pool_;
  PrefixCache* const prefixes_;
  RowPages* const rows_;
  FiniteProof* const proof_;
  std::vector<Publication> publications_;  // by row
  std::vector<BlockId> column_pages_;      // scratch, by group
  LookupCounts counts_;
};

}  // namespace quire::cache
