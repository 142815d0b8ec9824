#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/strong_id.h"
#include "cache_manager/cache_layout.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/prefix/prefix_cache.h"

namespace quire::cache {

// Before a step computes anything, rows [0, num_rows) of K and V of every layer are copied from
// page `source` to page `target`.
struct PageCopy {
  BlockId source;
  BlockId target;
  std::uint32_t num_rows = 0;
};

// One scheduled row of the next step.
struct RowStep {
  BatchRow row;
  std::uint32_t cache_length = 0;  // number of tokens cached before the step
  std::uint32_t new_tokens = 0;
};

// The page copies and clears that steps carry out, and the pages that steps in flight pin.
//
//   QueueCopy ---> queued ---TakeCopies---> taken ---Start---> in flight ---Complete---> done
//   Poison -> quarantined ---TakeClears---> taken ---Start---> in flight ---Complete---> free
//
// A step is in flight from Start to Complete, and the oldest step completes first. A row that frees
// a page while a step in flight may read or write it pins the page. A pinned page may be matched,
// but it is not allocated again before all steps that were in flight at that time have completed.
//
// Place:      above BlockPool and PrefixCache, below RowPages. Knows pages and row numbers, not the
//             columns of rows.
// Invariants: the source of a copy has a hold until the copy has completed, and each pinned page
//             has a hold (CacheManager::CheckIntegrity). The target of a copy that is queued or in
//             flight is referenced. The pages being cleared are the first of
//             BlockPool::quarantined_pages(). See CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   destroyed before the pool and the prefix cache.
class StepWork {
 public:
  StepWork(std::uint32_t max_rows, const CacheLayout* layout, BlockPool* pool,
           PrefixCache* prefixes);

  // Queues a copy for the next step. The source is held until the copy has completed.
  void QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows);
  // Removes the queued copy into `page` if the page is no longer referenced. Otherwise the copy
  // could overwrite the page after it was allocated to another row.
  void CancelCopyInto(BlockId page);
  // True if a copy into the page is queued, so the page does not contain the K and V of its tokens
  // yet.
  bool AwaitsCopy(BlockId page) const;
  // True if a step in flight copies into the page.
  bool IsCopyTarget(BlockId page) const;

  std::vector<PageCopy> TakeCopies();
  std::vector<BlockId> TakeClears();
  // Launches a step that does the work taken so far.
  void Start();
  // Adds a row to the step that was started last. REQUIRES: the row is not in this step.
  void AddRow(BatchRow row);
  // Completes the oldest step in flight. If `is_poisoned`, quarantines the pages that are pinned by
  // steps in flight, except for pages of full nodes.
  void Complete(bool is_poisoned);

  // Pins the page, which a row is about to free, until the steps in flight have completed.
  // REQUIRES: a step is in flight.
  void Pin(BlockId page);
  // True if a step in flight reads or writes the row.
  bool IsInFlight(BatchRow row) const;
  // Called when the row is freed, so that IsInFlight ignores earlier steps when the row is used
  // again.
  void ForgetRow(BatchRow row);

  bool has_work() const;  // copies or clears are queued
  std::uint32_t num_in_flight() const { return static_cast<std::uint32_t>(in_flight_.size()); }
  std::uint64_t num_started() const { return num_started_; }
  std::uint64_t num_completed() const { return num_started_ - in_flight_.size(); }

  // Adds the holds of this object's copies and pins to `holds`, which is indexed by page.
  void CountHolds(std::span<std::uint32_t> holds) const;
  absl::Status CheckIntegrity() const;

 private:
  friend struct StepWorkPeer;

  // The work of one step, and the pages that are pinned until it completes.
  struct Step {
    std::vector<PageCopy> copies;
    std::vector<BlockId> clears;
    std::vector<BlockId> pinned;
  };

  void DropHold(BlockId page);
  void PoisonPinned(const Step& step);
  void Release(Step& step);

  const CacheLayout* const layout_;
  BlockPool* const pool_;
  PrefixCache* const prefixes_;
  std::vector<PageCopy> queued_copies_;
  Step next_step_;                           // taken work, for the step that starts next
  std::vector<Step> in_flight_;              // oldest first
  std::size_t num_pages_being_cleared_ = 0;  // the first of the quarantined pages
  std::uint64_t num_started_ = 0;            // number of steps started
  std::vector<std::uint64_t> last_step_;     // by row: num_started_ at its last step, 0 if none
};

}  // namespace quire::cache
