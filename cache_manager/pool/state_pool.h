#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/intrusive_list.h"
#include "base/strong_id.h"
#include "cache_manager/pool/block_pool.h"

namespace quire::cache {

// Names a slot, which stores the states of all recurrent layers of one sequence; 0 is the null
// slot.
using StateSlot = StrongId<struct StateSlotTag, std::uint32_t>;
inline constexpr StateSlot kNullSlot{0};

// The state is derived from the fields of a slot. It is not stored.
enum class SlotState : std::uint8_t {
  kNull,         // id 0 only
  kFree,         // not referenced by any row or node
  kLive,         // one row writes it
  kFrozen,       // read by rows, or a snapshot of a node: never written
  kQuarantined,  // released while a step in flight may write it
};

absl::string_view SlotStateName(SlotState state);

// Allocates state slots, counts the rows that read them, and frees or caches them.
//
//              Allocate            Freeze              AttachNode
//      free ------------> live ------------> frozen ----------------> frozen, with a node
//       ^  ^                |  |                 |                      |  last reader dropped:
//       |  +------ Free ----+  +- Quarantine     | last reader dropped  |  evicted coldest first
//       +----------------------------------------+----------------------+
//
// Place:      below PrefixCache and CacheManager, beside BlockPool. Knows slot ids, not memory.
// Invariants: slot 0 is the null slot and is never allocated. Every other slot is in exactly one
//             state. A snapshot without readers is in the list of cached slots, and no other is.
//             Every operation on one slot is O(1).
// Threads:    engine thread only.
// Lifetime:   must outlive every row and node that names one of its slots.
class StatePool {
 public:
  // Called before a snapshot is evicted. The handler must detach the slot from its node.
  using EvictionHandler = std::function<void(StateSlot slot)>;

  // `num_slots` includes the null slot. 0: the model has no states. REQUIRES: num_slots != 1.
  explicit StatePool(std::uint32_t num_slots);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  void SetEvictionHandler(EvictionHandler handler) { evict_ = std::move(handler); }

  // Returns a live slot. Takes a free slot, or else evicts the coldest cached snapshot. Returns the
  // null slot if there is neither.
  StateSlot Allocate();

  // All functions below REQUIRE: 0 < slot.value() < num_slots.
  // Frees a live slot. REQUIRES: the slot is live.
  void Free(StateSlot slot);
  void Quarantine(StateSlot slot);
  // Frees all quarantined slots. They are not cleared: a row without cached tokens reads no state.
  void FreeQuarantined();
  // Makes a live slot frozen, with one reader. It has the state after `tokens` tokens. REQUIRES:
  // the slot is live; tokens > 0.
  void Freeze(StateSlot slot, std::uint32_t tokens);
  // REQUIRES: the slot is frozen.
  void AddReader(StateSlot slot);
  // A slot that loses its last reader is cached if it has a node, and else free. REQUIRES: the slot
  // has a reader.
  void DropReader(StateSlot slot);
  // Makes the slot the snapshot of `node`. REQUIRES: the slot has a reader and no node.
  void AttachNode(StateSlot slot, NodeId node);
  // REQUIRES: the slot has a node.
  void DetachNode(StateSlot slot);
  // Makes a cached snapshot the last one to be evicted. REQUIRES: the slot has a node.
  void Touch(StateSlot slot);
  // Records that finite logits have followed from the state. The record is cleared when the slot is
  // allocated again. REQUIRES: the slot is frozen.
  void SetProvenFinite(StateSlot slot);

  SlotState state(StateSlot slot) const;
  NodeId node(StateSlot slot) const { return at(slot).node; }
  std::uint32_t readers(StateSlot slot) const { return at(slot).readers; }
  // Number of tokens that the state of a frozen slot follows.
  std::uint32_t tokens(StateSlot slot) const { return at(slot).tokens; }
  bool is_proven_finite(StateSlot slot) const { return at(slot).is_proven_finite; }
  bool is_cached(StateSlot slot) const { return IsCached(at(slot)); }
  // Number of times that the slot was allocated. Callers compare it to detect a reallocation.
  std::uint64_t num_uses(StateSlot slot) const { return at(slot).num_uses; }

  std::uint32_t num_slots() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t usable() const { return slots_.empty() ? 0 : num_slots() - 1; }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t num_cached() const { return static_cast<std::uint32_t>(cached_.size()); }
  std::uint32_t num_snapshots() const { return num_snapshots_; }  // slots that have a node
  std::uint32_t available() const { return num_free() + num_cached(); }
  // Number of times that a slot became available.
  std::uint64_t num_returned() const { return num_returned_; }
  // Returns the cached slots, the next one to be evicted first. O(cached).
  std::vector<StateSlot> EvictionOrder() const;

  // Checks that lists and counts agree with the derived states (I13). O(num_slots).
  absl::Status CheckIntegrity() const;

 private:
  friend struct StatePoolPeer;

  struct Slot {
    IntrusiveNode<Slot> link;  // free, cached or quarantined list
    NodeId node = kNoNode;
    std::uint32_t readers = 0;
    std::uint32_t tokens = 0;
    std::uint64_t num_uses = 0;
    bool is_live = false;
    bool is_quarantined = false;
    bool is_proven_finite = false;
  };
  using List = IntrusiveList<Slot, &Slot::link>;

  Slot& at(StateSlot slot);
  const Slot& at(StateSlot slot) const;
  StateSlot id(const Slot* slot) const;
  SlotState StateOf(const Slot& slot) const;
  static bool IsCached(const Slot& slot) { return slot.node != kNoNode && slot.readers == 0; }
  // Links a slot that is neither live nor read any more.
  void Return(Slot& slot);
  absl::Status CheckSlot(const Slot& slot) const;

  std::vector<Slot> slots_;  // [num_slots]; never resized, as list links point into it
  List free_;                // last in, first out
  List cached_;              // coldest first
  List quarantined_;
  EvictionHandler evict_;
  std::uint32_t num_snapshots_ = 0;
  std::uint64_t num_returned_ = 0;
};

}  // namespace quire::cache
