#include "cache_manager/pool/state_pool.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {

absl::string_view SlotStateName(SlotState state) {
  static constexpr absl::string_view kNames[] = {"null", "free", "live", "frozen", "quarantined"};
  return kNames[static_cast<std::size_t>(state)];
}

StatePool::StatePool(std::uint32_t num_slots) : slots_(num_slots) {
  QUIRE_CHECK(num_slots != 1);
  for (std::uint32_t slot = 1; slot < num_slots; ++slot) free_.push_back(&slots_[slot]);
}

StatePool::Slot& StatePool::at(StateSlot slot) {
  QUIRE_CHECK(slot != kNullSlot && slot.value() < slots_.size());
  return slots_[slot.value()];
}

const StatePool::Slot& StatePool::at(StateSlot slot) const {
  QUIRE_CHECK(slot != kNullSlot && slot.value() < slots_.size());
  return slots_[slot.value()];
}

StateSlot StatePool::id(const Slot* slot) const {
  return StateSlot{static_cast<std::uint32_t>(slot - slots_.data())};
}

SlotState StatePool::StateOf(const Slot& slot) const {
  if (&slot == slots_.data()) return SlotState::kNull;
  if (slot.is_live) return SlotState::kLive;
  if (slot.is_quarantined) return SlotState::kQuarantined;
  return slot.readers > 0 || slot.node != kNoNode ? SlotState::kFrozen : SlotState::kFree;
}

SlotState StatePool::state(StateSlot slot) const {
  QUIRE_CHECK(slot.value() < slots_.size());
  return StateOf(slots_[slot.value()]);
}

StateSlot StatePool::Allocate() {
  if (free_.empty()) {
    if (cached_.empty()) return kNullSlot;
    evict_(id(cached_.front()));
    QUIRE_CHECK(!free_.empty());
  }
  Slot* const slot = free_.pop_front();
  slot->is_live = true;
  slot->is_proven_finite = false;
  ++slot->num_uses;
  return id(slot);
}

void StatePool::Return(Slot& slot) {
  ++num_returned_;
  if (slot.node == kNoNode) {
    free_.push_front(&slot);
  } else {
    cached_.push_back(&slot);
  }
}

void StatePool::Free(StateSlot slot) {
  QUIRE_CHECK(state(slot) == SlotState::kLive);
  at(slot).is_live = false;
  Return(at(slot));
}

void StatePool::Quarantine(StateSlot slot) {
  QUIRE_CHECK(state(slot) == SlotState::kLive);
  at(slot).is_live = false;
  at(slot).is_quarantined = true;
  quarantined_.push_back(&at(slot));
}

void StatePool::FreeQuarantined() {
  while (!quarantined_.empty()) {
    Slot* const slot = quarantined_.pop_front();
    slot->is_quarantined = false;
    Return(*slot);
  }
}

void StatePool::Freeze(StateSlot slot, std::uint32_t tokens) {
  QUIRE_CHECK(state(slot) == SlotState::kLive && tokens > 0);
  at(slot).is_live = false;
  at(slot).tokens = tokens;
  at(slot).readers = 1;
}

void StatePool::AddReader(StateSlot slot) {
  QUIRE_CHECK(state(slot) == SlotState::kFrozen);
  if (is_cached(slot)) cached_.erase(&at(slot));
  ++at(slot).readers;
}

void StatePool::DropReader(StateSlot slot) {
  QUIRE_CHECK(at(slot).readers > 0);
  if (--at(slot).readers == 0) Return(at(slot));
}

void StatePool::AttachNode(StateSlot slot, NodeId node) {
  QUIRE_CHECK(at(slot).readers > 0 && at(slot).node == kNoNode && node != kNoNode);
  at(slot).node = node;
  ++num_snapshots_;
}

void StatePool::DetachNode(StateSlot slot) {
  QUIRE_CHECK(at(slot).node != kNoNode);
  const bool was_cached = is_cached(slot);
  if (was_cached) cached_.erase(&at(slot));
  at(slot).node = kNoNode;
  --num_snapshots_;
  if (was_cached) Return(at(slot));
}

void StatePool::Touch(StateSlot slot) {
  QUIRE_CHECK(at(slot).node != kNoNode);
  if (!is_cached(slot)) return;
  cached_.erase(&at(slot));
  cached_.push_back(&at(slot));
}

void StatePool::SetProvenFinite(StateSlot slot) {
  QUIRE_CHECK(state(slot) == SlotState::kFrozen);
  at(slot).is_proven_finite = true;
}

std::vector<StateSlot> StatePool::EvictionOrder() const {
  std::vector<StateSlot> slots;
  for (const Slot* slot = cached_.front(); slot != nullptr; slot = List::next(slot)) {
    slots.push_back(id(slot));
  }
  return slots;
}

absl::Status StatePool::CheckSlot(const Slot& slot) const {
  const std::uint32_t name = id(&slot).value();
  const bool is_frozen = slot.readers > 0 || slot.node != kNoNode;
  if (slot.is_live + slot.is_quarantined + is_frozen > 1) {
    return absl::InternalError(absl::StrCat("slot ", name, " is in several states: live ",
                                            slot.is_live, ", quarantined ", slot.is_quarantined,
                                            ", frozen ", is_frozen));
  }
  if (&slot == slots_.data() && (slot.is_live || slot.is_quarantined || is_frozen)) {
    return absl::InternalError("the null slot is in use");
  }
  return absl::OkStatus();
}

absl::Status StatePool::CheckIntegrity() const {
  std::uint32_t snapshots = 0;
  std::uint32_t free = 0;
  std::uint32_t cached = 0;
  std::uint32_t quarantined = 0;
  for (const Slot& slot : slots_) {
    QUIRE_RETURN_IF_ERROR(CheckSlot(slot));
    const SlotState state = StateOf(slot);
    snapshots += slot.node != kNoNode;
    free += state == SlotState::kFree;
    cached += IsCached(slot);
    quarantined += state == SlotState::kQuarantined;
    const bool is_listed =
        state == SlotState::kFree || state == SlotState::kQuarantined || IsCached(slot);
    if (is_listed != List::is_linked(&slot)) {
      return absl::InternalError(absl::StrCat("slot ", id(&slot).value(), " is ",
                                              SlotStateName(state),
                                              is_listed ? " but in no list" : " but in a list"));
    }
  }
  for (const Slot* slot = free_.front(); slot != nullptr; slot = List::next(slot)) {
    if (StateOf(*slot) == SlotState::kFree) continue;
    return absl::InternalError(absl::StrCat(
        "slot ", id(slot).value(), " is ", SlotStateName(StateOf(*slot)), " but in the free list"));
  }
  for (const Slot* slot = cached_.front(); slot != nullptr; slot = List::next(slot)) {
    if (IsCached(*slot)) continue;
    return absl::InternalError(absl::StrCat("slot ", id(slot).value(), " is ",
                                            SlotStateName(StateOf(*slot)),
                                            " but in the cached list"));
  }
  if (free != free_.size() || cached != cached_.size() || quarantined != quarantined_.size() ||
      snapshots != num_snapshots_) {
    return absl::InternalError(absl::StrCat(
        "the pool counts ", free_.size(), " free, ", cached_.size(), " cached and ",
        quarantined_.size(), " quarantined slots and ", num_snapshots_, " snapshots, but has ",
        free, ", ", cached, ", ", quarantined, " and ", snapshots));
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
