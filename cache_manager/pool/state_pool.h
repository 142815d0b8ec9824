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

// The state of a slot. It is derived from the fields of the slot and is not stored.
enum class SlotState : std::uint8_t {
  kNull,         // slot 0 only
  kFree,         // not referenced by any row or node
  kLive,         // one row writes it
  kFrozen,       // read by rows, or a snapshot of a node: never written
  kQuarantined,  // released while a step in flight may write it
};

absl::string_view SlotStateName(SlotState state);

// Allocates state slots, counts their readers (rows and the step in flight), and frees or caches
// them.
//
//              Allocate            Freeze              AttachNode
//      free ------------> live ------------> frozen ----------------> frozen, with a node
//       ^  ^                |  |                 |                      |  last reader dropped:
//       |  +------ Free ----+  +- Quarantine     | last reader dropped  |  evicted coldest first
//       +----------------------------------------+----------------------+
//
// Place:      below PrefixCache and CacheManager, beside BlockPool. Knows slot ids, not memory.
// Invariants: slot 0 is the null slot and is never allocated. Every other slot is in exactly one
//             state. The cached slots are exactly the snapshots (slots with a node) that have no
//             readers. Every operation on one slot is O(1).
// Threads:    engine thread only.
// Lifetime:   must outlive every row and node that names one of its slots.
class StatePool {
 public:
  // Called to evict a cached snapshot. The handler must call DetachNode for the slot, which frees
  // it.
  using EvictionHandler = std::function<void(StateSlot slot)>;

  // `num_slots` includes the null slot. 0: the model has no states. REQUIRES: num_slots != 1.
  explicit StatePool(std::uint32_t num_slots);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  void SetEvictionHandler(EvictionHandler handler) { evict_ = std::move(handler); }

  // Returns a live slot. Takes a free slot, or else evicts the coldest cached snapshot. Returns the
  // null slot if there is neither.
  StateSlot Allocate();

  // Every function below that takes a slot, except state(), REQUIRES: 0 < slot.value() < num_slots.
  //
  // Frees the slot. REQUIRES: the slot is live.
  void Free(StateSlot slot);
  // Keeps the slot from being allocated until FreeQuarantined. REQUIRES: the slot is live.
  void Quarantine(StateSlot slot);
  // Frees all quarantined slots. Their bytes are not cleared, because a row without cached tokens
  // reads no state.
  void FreeQuarantined();
  // Makes the slot frozen, with one reader. It then stores the state after `tokens` tokens.
  // REQUIRES: the slot is live; tokens > 0.
  void Freeze(StateSlot slot, std::uint32_t tokens);
  // REQUIRES: the slot is frozen.
  void AddReader(StateSlot slot);
  // A slot that loses its last reader is cached if it has a node, and else free. REQUIRES: the slot
  // has a reader.
  void DropReader(StateSlot slot);
  // Makes the slot the snapshot of `node`. REQUIRES: the slot has a reader and no node.
  void AttachNode(StateSlot slot, NodeId node);
  // Removes the node of the slot. A cached slot becomes free. REQUIRES: the slot has a node.
  void DetachNode(StateSlot slot);
  // If the snapshot is cached, makes it the last one to be evicted. REQUIRES: the slot has a node.
  void Touch(StateSlot slot);
  // Records that finite logits were computed from the state. The record is cleared when the slot is
  // allocated again. REQUIRES: the slot is frozen.
  void SetProvenFinite(StateSlot slot);

  // REQUIRES: slot.value() < num_slots.
  SlotState state(StateSlot slot) const;
  NodeId node(StateSlot slot) const { return at(slot).node; }
  std::uint32_t readers(StateSlot slot) const { return at(slot).readers; }
  // A frozen slot stores the state after this number of tokens.
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
  // Returns the cached slots in the order in which they would be evicted. O(cached).
  std::vector<StateSlot> EvictionOrder() const;

  // Checks that lists and counts agree with the derived states (I13 of docs/kv_cache.md).
  // O(num_slots).
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
  // Adds a slot that is neither live nor read to the cached list if it has a node, and otherwise to
  // the free list.
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
