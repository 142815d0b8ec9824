#pragma once

// What lies behind CacheManager, in its own header so that tests can break an invariant on purpose.
// Nobody else includes it; contract, threads and lifetime are those of CacheManager.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cache_manager/block_pool.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/lookup_table.h"
#include "cache_manager/prefix_cache.h"

namespace quire::cache {

// Fewer common rows than this part of a page are computed again rather than copied.
inline constexpr std::uint32_t kMinPartialShare = 8;

// What is known of a row beside its columns in the lookup table.
struct RowState {
  Hash128 root;
  bool is_attached = false;  // root is valid
  bool may_publish = true;
  bool is_blocked = false;          // published what it could
  std::uint32_t num_published = 0;  // leading columns known to have nodes
  std::uint64_t last_step = 0;      // the PrepareStep that scheduled it last
};

// What the launched step does besides computing rows, and the pages that it names although no row
// holds them any more. Each source and each held page has a transfer reference.
struct StepWork {
  std::vector<PageCopy> copies;
  std::vector<BlockId> clears;
  std::vector<BlockId> held;
};

struct CacheManager::State {
  State(const CacheManagerOptions& manager_options, LookupTable lookup_table)
      : options(manager_options),
        page_size(options.geometry.page_size),
        partial_page_reuse(options.partial_page_reuse),
        pool(options.geometry.num_blocks),
        table(std::move(lookup_table)),
        prefixes(
            {.page_size = page_size, .hash_key = options.hash_key, .page_hash = options.page_hash},
            &pool),
        rows(options.max_rows) {
    fresh.reserve(table.max_pages());
    scheduled.reserve(options.max_rows);
    pending_copies.reserve(options.max_rows);
    in_flight.reserve(4);
    inputs.lookup_table = table.pages();
    inputs.cache_lengths = table.lengths();
    inputs.lookup_stride = table.stride();
    inputs.max_rows = options.max_rows;
  }

  RowState& row_state(BatchRow row);
  std::uint32_t num_columns(BatchRow row) const { return table.num_columns(row); }

  // Take a reference away and put the page, if that was the last one, where it belongs.
  void DropRequest(BlockId page);
  void DropTransfer(BlockId page);
  // Cancels the copy into a page that nobody refers to any more.
  void SettleAbandoned(BlockId page);
  void QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows);
  // Whether a copy into the page was queued but not taken: it does not hold what it will hold.
  bool AwaitsCopy(BlockId page) const;
  void FreeRow(BatchRow row);
  // Whether a step in flight reads or writes the row.
  bool IsInFlight(BatchRow row) const {
    return rows[row.value()].last_step > step - in_flight.size();
  }
  // Whether a copy into the page has been launched and not completed.
  bool IsBeingCopied(BlockId page) const;
  // Keeps the page, which a row is about to let go, until the steps in flight have completed.
  void Hold(BlockId page);
  // The step that does `work` has run.
  void Release(StepWork& work, bool spoil_held);

  bool CanPublish(BatchRow row);
  NodeId NodeBefore(BatchRow row, std::uint32_t column) const;
  void PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                      std::span<const PageKey> keys, std::uint32_t full_pages);
  bool PublishColumn(BatchRow row, std::uint32_t column, std::span<const std::int32_t> page_tokens,
                     const PageKey& key);
  void Adopt(BatchRow row, std::uint32_t column, BlockId twin);
  void KeepTail(BatchRow row, std::span<const std::int32_t> tokens, std::uint32_t computed_tokens);

  absl::Status CheckReferences() const;
  absl::Status CheckRow(BatchRow row) const;
  absl::Status CheckStepWork() const;

  const CacheManagerOptions options;
  const std::uint32_t page_size;
  bool partial_page_reuse;
  BlockPool pool;
  LookupTable table;
  PrefixCache prefixes;
  std::vector<RowState> rows;

  std::vector<PageCopy> pending_copies;  // not taken yet; each source has a transfer reference
  StepWork taken;                        // of the step that is being made
  std::vector<StepWork> in_flight;       // of the steps launched and not completed, oldest first
  std::size_t num_clears_taken = 0;      // that many quarantined pages, the first ones

  KvStepInputs inputs;
  std::uint64_t step = 0;           // calls of PrepareStep
  std::vector<BatchRow> scheduled;  // rows whose length is set
  std::vector<BlockId> fresh;       // scratch of Reserve
  std::uint64_t hit_tokens = 0;
  std::uint64_t queried_tokens = 0;
  std::uint64_t collisions = 0;
};

}  // namespace quire::cache
