#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/strong_id.h"
#include "cache_manager/cache_manager_options.h"
#include "cache_manager/pool/state_pool.h"
#include "cache_manager/prefix/prefix_cache.h"
#include "cache_manager/prefix_match.h"
#include "cache_manager/step_work.h"
#include "cache_manager/views/state_step_inputs.h"

namespace quire::cache {

// The state slots of each batch row, and the step arrays made from them.
//
// A row writes its own slot. After an attach to cached tokens, or after a fork, the row's state is
// in another slot that other rows may read too. The row's next step reads that slot and writes the
// row's own slot, so nothing is copied. A step may also write a snapshot of the state, which
// becomes the state of a prefix node when the step has completed.
//
// A model without recurrent layers has no slots. The functions then do nothing, but PublishState,
// snapshot_tokens and PublishSnapshot must not be called.
//
// Place:      above StatePool and PrefixCache, below CacheManager, beside RowPages. Knows slots,
//             positions and nodes, not tokens.
// Invariants: a slot is written by at most one row, as its own slot or as its snapshot, and is then
//             live. A step in flight writes no frozen slot (I15 of docs/kv_cache.md). See
//             CheckIntegrity().
// Threads:    engine thread only. At most one step is in flight, because a step that is discarded
//             would have changed the only state of a row.
// Lifetime:   destroyed before the pool and the prefix cache.
class RowStates {
 public:
  // The snapshot near the end of a prompt is taken at least this many tokens before the end. A
  // later prompt that differs only in these tokens can then use it. Chat templates that open a
  // reasoning section at the end of the prompt produce such prompts.
  static constexpr std::uint32_t kSlackTokens = 16;
  // Maximum number of snapshots on the path of one history. Without this limit, one long prompt
  // could evict the snapshots of all other conversations. In a small pool the maximum is half of
  // the slots that are left for snapshots, but at least 2.
  static constexpr std::uint32_t kMaxPathSnapshots = 8;

  RowStates(const CacheManagerOptions& options, StatePool* pool, PrefixCache* prefixes);

  bool is_enabled() const { return pool_->usable() > 0; }

  // Returns RESOURCE_EXHAUSTED "needs N state slots, M available" if fewer than `slots` slots can
  // be allocated without evicting the snapshot `kept`, which may be the null slot.
  absl::Status CheckRoom(std::uint32_t slots, StateSlot kept) const;
  // Return the number of slots to allocate in Attach or Reserve (SlotsForRow) and in Fork
  // (SlotsForFork).
  std::uint32_t SlotsForRow(BatchRow row) const;
  std::uint32_t SlotsForFork(BatchRow parent) const;

  // The functions below REQUIRE that slots are available.
  // Allocates the row's own slot and adds a reader to the slot of the match.
  void Attach(BatchRow row, const PrefixMatch& match, std::uint32_t prompt_tokens);
  // Allocates the row's own slot if it has none.
  void Reserve(BatchRow row);
  // REQUIRES: the parent's state follows `computed_tokens` tokens; the parent is in no step in
  // flight.
  void Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens);

  // Releases all slots of the row. `is_in_flight`: a step in flight may still write them.
  void Free(BatchRow row, bool is_in_flight);
  // True if the row's state follows exactly `tokens` tokens. The tokens of the step in flight count
  // too.
  bool HasStateAfter(BatchRow row, std::uint32_t tokens) const;
  // True if PublishState(row, node) can make the state after `tokens` tokens the snapshot of a
  // node.
  bool CanPublishState(BatchRow row, std::uint32_t tokens) const;
  // Makes the row's state the snapshot of `node`, unless the node has one. REQUIRES:
  // CanPublishState for the tokens of the node's history. The row is freed next.
  void PublishState(BatchRow row, NodeId node, bool is_proven);

  // Returns the number of tokens that precede the snapshot that the row's last step wrote, or 0 if
  // there is none. Such a snapshot has no node yet.
  std::uint32_t snapshot_tokens(BatchRow row) const { return rows_[row.value()].snapshot_tokens; }
  // Makes that snapshot the state of `node`, unless the node has one. If `node` is kNoNode, frees
  // the snapshot. REQUIRES: the step that wrote it has completed.
  void PublishSnapshot(BatchRow row, NodeId node, bool is_proven);

  // Records that the logits of token `tokens` - 1 of the row were finite. The states that the row
  // has read or written are then finite too, if they follow at most `tokens` tokens.
  void SetProven(BatchRow row, std::uint32_t tokens);

  // Returns how many of the row's next `tokens` tokens one step may compute without missing a
  // snapshot. A step writes at most one snapshot. A step must therefore end at the position where
  // the row diverged from a published path if it would otherwise also reach the last reusable page
  // end (LastReusablePosition).
  std::uint32_t LimitChunk(BatchRow row, std::uint32_t tokens) const;

  // Fills the step arrays. A row for which `may_publish` is true writes a snapshot where later
  // requests can use one, if a slot is free or cached.
  void PrepareStep(std::span<const RowStep> rows,
                   absl::FunctionRef<bool(BatchRow row)> may_publish);
  // Called when the step in flight has completed.
  void CompleteStep();
  const StateStepInputs& inputs() const { return inputs_; }

  std::uint32_t num_live() const;
  absl::Status CheckIntegrity() const;

 private:
  friend struct RowStatesPeer;

  // One use of a slot, which may have been evicted and allocated again since.
  struct SlotUse {
    StateSlot slot;
    std::uint64_t use = 0;
  };
  struct Row {
    StateSlot own;             // written by the row's steps
    StateSlot source;          // read by the row's next step instead of `own`; may be shared
    std::uint32_t tokens = 0;  // tokens in the state, including those of the step in flight
    std::uint32_t prompt_tokens = 0;
    // Position, in tokens, where the prompt diverges from published pages, if there is no usable
    // snapshot at this position. A snapshot there serves other prompts with the same beginning. 0:
    // none.
    std::uint32_t branch_position = 0;
    StateSlot snapshot;  // written by the row's last step, has no node yet
    std::uint32_t snapshot_tokens = 0;
    std::vector<SlotUse> unproven_uses;  // uses of slots since the last finite logits
  };

  Row& at(BatchRow row);
  const Row& at(BatchRow row) const;
  StateSlot TakeSlot();
  // Makes the slot the snapshot of `node`. Removes earlier snapshots if the path has too many.
  void SetState(NodeId node, StateSlot slot);
  void ReleaseSlot(StateSlot slot, bool is_in_flight);
  // Returns the last page end, in tokens, that a repetition of the row's prompt can use, or 0 if
  // there is none.
  std::uint32_t LastReusablePosition(const Row& row) const;
  // Returns the position, in tokens, at which a step over [begin, end) writes a snapshot; 0 if
  // none.
  std::uint32_t SnapshotPosition(const Row& row, std::uint32_t begin, std::uint32_t end) const;
  absl::Status CheckSlots() const;
  absl::Status CheckStep() const;

  const std::uint32_t page_size_;
  const std::uint32_t snapshot_interval_;
  const std::uint32_t max_path_snapshots_;
  StatePool* const pool_;
  PrefixCache* const prefixes_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> state_in_, state_out_, snapshot_at_, snapshot_slot_;  // by row
  StateStepInputs inputs_;
  std::vector<BatchRow> scheduled_rows_;  // rows of the step in flight
  std::vector<StateSlot> read_slots_;     // sources that the step in flight reads
};

}  // namespace quire::cache
