#pragma once

// What lies behind CacheManager, in its own header so that tests can break an invariant on purpose.
// No other file includes it; contract, threads and lifetime are those of CacheManager.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "cache_manager/prefix/prefix_cache.h"

namespace quire::cache {

// Fewer common rows than this part of a page are computed again rather than copied.
inline constexpr std::uint32_t kMinPartialShare = 8;

inline std::uint32_t CeilDiv(std::uint32_t value, std::uint32_t unit) {
  return static_cast<std::uint32_t>((std::uint64_t{value} + unit - 1) / unit);
}

// What is known of a row beside its columns in the lookup table.
struct RowState {
  Hash128 root;
  bool is_attached = false;  // root is valid
  bool may_publish = true;
  bool is_blocked = false;          // published what it could
  std::uint32_t num_published = 0;  // leading columns known to have nodes
  std::uint32_t proven_tokens = 0;  // CacheManager::proven_tokens
  std::uint64_t last_step = 0;      // the PrepareStep that scheduled it last
  // Where the first page begins that it has adopted unproven, and the step that was launched last
  // before that: up to this one, steps have read another page in its place.
  std::uint32_t adopted_from = 0;
  std::uint64_t adoption_step = 0;  // 0: there is none
};

// What the launched step does besides computing rows, and the pages that it names although no row
// holds them any more. Each source and each held page has a transfer reference.
struct StepWork {
  std::vector<PageCopy> copies;
  std::vector<BlockId> clears;
  std::vector<BlockId> held;
};

struct CacheManager::State {
  State(const CacheManagerOptions& manager_options, std::vector<LookupTable> lookup_tables);

  RowState& row_state(BatchRow row);
  std::size_t num_groups() const { return tables.size(); }
  // The columns that have had pages in every group, and in any.
  std::uint32_t num_columns(BatchRow row) const;
  std::uint32_t end_column(BatchRow row) const;
  std::uint32_t num_pages(BatchRow row) const;

  // The first column that a query at `position` reads.
  std::uint32_t FirstRead(std::size_t group, std::uint32_t position) const;
  // The first column of which it reads all tokens.
  std::uint32_t FirstReadWhole(std::size_t group, std::uint32_t position) const {
    return FirstRead(group, position + page_size - 1);
  }
  // The first column that a row holds whose next query is at `position`, after `published` columns
  // with nodes: always the last of them, as the next one continues it.
  std::uint32_t FirstHeld(std::size_t group, std::uint32_t position, std::uint32_t published) const;

  // The longest run of pages for `tokens` that every group can use, into match->pages, and its last
  // node.
  NodeId MatchPages(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                    const Hash128& root, PrefixMatch* match) const;
  // Of the pages of the match that a row would hold, the columns before the first one that is not
  // proven.
  std::uint32_t ProvenColumns(const PrefixMatch& match) const;
  // How many cached pages the match would make referenced.
  std::uint32_t NumCached(const PrefixMatch& match) const;
  void AttachPages(BatchRow row, const PrefixMatch& match);
  // Gives the row a column of fresh pages and queues the copies into them.
  void AttachCopies(BatchRow row, std::span<const BlockId> sources, std::uint32_t num_rows);

  // Take a reference away and put the page, if that was the last one, where it belongs.
  void DropRequest(BlockId page);
  void DropTransfer(BlockId page);
  // Cancels the copy into a page that has no reference any more.
  void SettleAbandoned(BlockId page);
  void QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows);
  // Whether a copy into the page was queued but not taken: it does not hold what it will hold.
  bool AwaitsCopy(BlockId page) const;
  void FreeRow(BatchRow row);
  // The steps that have run.
  std::uint64_t num_completed() const { return step - in_flight.size(); }
  // Whether a step in flight reads or writes the row.
  bool IsInFlight(BatchRow row) const { return rows[row.value()].last_step > num_completed(); }
  // Whether a copy into the page has been launched and not completed.
  bool IsBeingCopied(BlockId page) const;
  // Keeps the page, which a row is about to let go, until the steps in flight have completed.
  void Hold(BlockId page);
  // The pages held for `work` that a step in flight can have written, which are those without a
  // full node, stop being findable and are cleared before they are handed out.
  void PoisonHeld(const StepWork& work);
  // The step that does `work` has run.
  void Release(StepWork& work);

  bool CanPublish(BatchRow row);
  // The node that a page at `column` continues; kNoNode when that would be a root not known yet, or
  // when the row does not hold the page before.
  NodeId NodeBefore(BatchRow row, std::uint32_t column) const;
  // The child of `node` that is the node of `column` of a history; kNoNode when there is none.
  NodeId ChildAt(NodeId node, std::uint32_t column, std::span<const std::int32_t> tokens,
                 std::span<const PageKey> keys) const;
  // The node of `column` of a history; kNoNode when it has none.
  NodeId FindNode(const Hash128& root, std::uint32_t column, std::span<const std::int32_t> tokens,
                  std::span<const PageKey> keys) const;
  // The node of `column`; kNoNode when it has none. Where its pages were given back it is found by
  // `keys`, which the row's last pages may not lead to any more.
  NodeId NodeAt(BatchRow row, std::uint32_t column, std::span<const std::int32_t> tokens,
                std::span<const PageKey> keys) const;
  void PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                      std::span<const PageKey> keys, std::uint32_t full_pages);
  bool PublishColumn(BatchRow row, std::uint32_t column, std::span<const std::int32_t> page_tokens,
                     const PageKey& key);
  // Whether all of these pages are proven that there are.
  bool AreProven(std::span<const BlockId> pages) const;
  // The same of the pages that the row holds of a column; of all pages of its node where the row
  // has let go of its own.
  bool IsColumnProven(BatchRow row, std::uint32_t column, NodeId node) const;
  // Whether a merge with the twin would take a proven page of the row's column for one that is not.
  bool ReplacesProven(BatchRow row, std::uint32_t column, NodeId twin) const;
  // A page of the row's column was replaced by one that is not proven.
  void NoteAdoption(BatchRow row, std::uint32_t column);
  // The column's pages have the tokens of `twin`: takes the pages that it has, gives it the others.
  void Merge(BatchRow row, std::uint32_t column, NodeId twin);
  void Adopt(std::size_t group, BatchRow row, std::uint32_t column, BlockId twin);
  // The pages of one column, by group. REQUIRES: all groups have it. Valid until the next call.
  std::span<const BlockId> PagesAt(BatchRow row, std::uint32_t column);
  // Whether the pages of one column hold what their tokens say, in every group.
  bool HoldsColumn(BatchRow row, std::uint32_t column) const;
  void KeepTail(BatchRow row, std::span<const std::int32_t> tokens, std::uint32_t computed_tokens);

  void Schedule(const RowStep& row);

  absl::Status CheckReferences() const;
  absl::Status CheckColumns(BatchRow row, std::size_t group) const;
  // Whether so many nodes, and the row's root, lie before the node.
  bool IsInColumn(NodeId node, BatchRow row, std::uint32_t column) const;
  absl::Status CheckRow(BatchRow row, std::size_t group) const;
  absl::Status CheckStepWork() const;

  const CacheManagerOptions options;
  const std::uint32_t page_size;
  const PageDemand demand;
  bool partial_page_reuse;
  BlockPool pool;
  std::vector<LookupTable> tables;         // by group
  const std::vector<std::size_t> windows;  // the groups that have one
  const std::size_t widest;  // the group that holds pages longest: no group begins before it
  PrefixCache prefixes;
  std::vector<RowState> rows;

  std::vector<PageCopy> pending_copies;  // not taken yet; each source has a transfer reference
  StepWork taken;                        // of the step that is being made
  std::vector<StepWork> in_flight;       // of the steps launched and not completed, oldest first
  std::size_t num_clears_taken = 0;      // that many quarantined pages, the first ones

  std::vector<KvStepInputs> inputs;   // by group
  std::uint64_t step = 0;             // calls of PrepareStep
  std::vector<BatchRow> scheduled;    // rows whose length is set
  std::vector<BlockId> fresh;         // scratch of Reserve and AttachCopies
  std::vector<BlockId> column_pages;  // scratch of PagesAt
  std::uint64_t hit_tokens = 0;
  std::uint64_t queried_tokens = 0;
  std::uint64_t collisions = 0;
};

}  // namespace quire::cache
