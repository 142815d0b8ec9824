#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/strong_id.h"
#include "cache_manager/cache_layout.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "cache_manager/prefix/prefix_cache.h"
#include "cache_manager/prefix_match.h"
#include "cache_manager/step_work.h"
#include "cache_manager/views/kv_step_inputs.h"

namespace quire::cache {

// The pages of each batch row, in one lookup table per layer group, and the step arrays made from
// them. Every entry of a table owns one row reference to its page.
//
// Place:      above BlockPool, PrefixCache and StepWork; below FiniteProof and PrefixIndex. Knows
//             columns and pages, not tokens.
// Invariants: in a group without window the pages of every row begin at column 0. In the widest
//             group the pages of a row begin no later than in any other group. All groups without
//             window end at the same column. All window groups also end at one column, which is not
//             later. See CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   destroyed before the pool, the prefix cache and the step work.
class RowPages {
 public:
  // REQUIRES: `tables` has one table per group of the layout.
  RowPages(const CacheLayout* layout, std::vector<LookupTable> tables, BlockPool* pool,
           PrefixCache* prefixes, StepWork* step_work);

  // Makes the matched pages the first columns of `row`, and queues the copies of a partial page. If
  // too few pages to copy into are available, changes nothing and returns RESOURCE_EXHAUSTED.
  // REQUIRES: the row has no pages; the match is not outdated.
  absl::Status Attach(BatchRow row, const PrefixMatch& match);
  // CacheManager describes the next four functions under the same names.
  absl::Status Reserve(BatchRow row, std::uint32_t total_tokens, std::uint32_t step_tokens);
  absl::Status Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens);
  // Releases columns before `keep_from` only.
  void ReleaseOutsideWindow(BatchRow row, std::uint32_t computed_tokens, std::uint32_t keep_from);
  void Free(BatchRow row);

  // Replaces the row's page of one column by `page`, which is referenced or cached.
  void Replace(std::size_t group, BatchRow row, std::uint32_t column, BlockId page);
  // Poisons the row's pages from `first_column` on. REQUIRES: none of them has a node.
  void Poison(BatchRow row, std::uint32_t first_column);

  // Fills the step arrays and adds the rows to the step that was started last (StepWork). See
  // CacheManager::PrepareStep.
  std::span<const KvStepInputs> FillStepInputs(std::span<const RowStep> rows);

  const CacheLayout& layout() const { return *layout_; }
  std::uint32_t max_rows() const { return tables_.front().max_rows(); }
  std::span<const LookupTable> tables() const { return tables_; }
  // Returns the table of the group that keeps pages longest.
  const LookupTable& widest_table() const { return tables_[layout_->widest_group()]; }
  // Returns the number of leading columns that the row has reserved in every group. Includes
  // columns whose pages a window group has released or never had.
  std::uint32_t reserved_columns(BatchRow row) const;
  // Returns the column after the last page of any group.
  std::uint32_t end_column(BatchRow row) const;
  std::uint32_t num_pages(BatchRow row) const;
  std::uint32_t num_private_pages(BatchRow row) const;  // pages that no other row references
  // True if the row has the column's page in every group, and none of these pages is poisoned or
  // awaits a copy.
  bool HasValidColumn(BatchRow row, std::uint32_t column) const;
  // Writes the pages of one column, by group, into `pages`. REQUIRES: all groups have a page;
  // pages.size() is the number of groups.
  void ReadColumn(BatchRow row, std::uint32_t column, std::span<BlockId> pages) const;

  // Adds the row references of all tables to `row_refs`, which is indexed by page. Returns INTERNAL
  // if a table names a page that does not exist.
  absl::Status CountRowRefs(std::span<std::uint32_t> row_refs) const;
  absl::Status CheckIntegrity() const;

 private:
  friend struct RowPagesPeer;

  // Returns the number of cached pages that attaching the match would reference.
  std::uint32_t NumCached(const PrefixMatch& match) const;
  // Appends a column of new pages to the row and queues the copies into them.
  void AttachCopies(BatchRow row, std::span<const BlockId> sources, std::uint32_t num_rows);
  void DropRowRef(BlockId page);
  // Checks that the step may run the row and sets the row's length.
  void Schedule(const RowStep& step);
  absl::Status CheckColumns(BatchRow row, std::size_t group) const;

  const CacheLayout* const layout_;
  BlockPool* const pool_;
  PrefixCache* const prefixes_;
  StepWork* const step_work_;
  std::vector<LookupTable> tables_;       // by group
  std::vector<KvStepInputs> inputs_;      // by group
  std::vector<BatchRow> scheduled_rows_;  // rows whose length is set
  std::vector<BlockId> new_pages_;        // scratch: pages allocated by the current call
};

}  // namespace quire::cache
