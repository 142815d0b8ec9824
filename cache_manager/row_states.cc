#include "cache_manager/row_states.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {
namespace {

std::uint32_t MaxPathSnapshots(const CacheManagerOptions& options) {
  constexpr std::uint32_t kMinSnapshots = 2;
  const std::uint32_t other_slots = 1 + options.max_rows;  // the null slot and one slot per row
  const std::uint32_t snapshots =
      options.num_state_slots - std::min(options.num_state_slots, other_slots);
  return std::clamp(snapshots / 2, kMinSnapshots, RowStates::kMaxPathSnapshots);
}

}  // namespace

RowStates::RowStates(const CacheManagerOptions& options, StatePool* pool, PrefixCache* prefixes)
    : page_size_(options.geometry.page_size),
      snapshot_interval_(options.state_interval_tokens),
      max_path_snapshots_(MaxPathSnapshots(options)),
      pool_(pool),
      prefixes_(prefixes) {
  if (!is_enabled()) return;
  rows_.resize(options.max_rows);
  for (auto* array : {&state_in_, &state_out_, &snapshot_at_, &snapshot_slot_}) {
    array->resize(options.max_rows);
  }
  for (Row& row : rows_) row.unproven_uses.reserve(8);
  scheduled_rows_.reserve(options.max_rows);
  read_slots_.reserve(options.max_rows);
  inputs_ = {.state_in = state_in_.data(),
             .state_out = state_out_.data(),
             .snapshot_at = snapshot_at_.data(),
             .snapshot_slot = snapshot_slot_.data(),
             .max_rows = options.max_rows};
}

RowStates::Row& RowStates::at(BatchRow row) {
  QUIRE_CHECK(row.value() < rows_.size());
  return rows_[row.value()];
}

const RowStates::Row& RowStates::at(BatchRow row) const {
  QUIRE_CHECK(row.value() < rows_.size());
  return rows_[row.value()];
}

absl::Status RowStates::CheckRoom(std::uint32_t slots, StateSlot kept) const {
  if (!is_enabled()) return absl::OkStatus();
  const bool keeps_cached = kept != kNullSlot && pool_->is_cached(kept);
  const std::uint32_t available = pool_->available() - (keeps_cached ? 1 : 0);
  if (slots <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs ", slots, " state slots, ", available, " available"));
}

std::uint32_t RowStates::SlotsForRow(BatchRow row) const {
  return is_enabled() && at(row).own == kNullSlot ? 1 : 0;
}

std::uint32_t RowStates::SlotsForFork(BatchRow parent) const {
  if (!is_enabled()) return 0;
  const Row& row = at(parent);
  return row.source == kNullSlot && row.tokens > 0 ? 2 : 1;
}

StateSlot RowStates::TakeSlot() {
  const StateSlot slot = pool_->Allocate();
  QUIRE_CHECK(slot != kNullSlot);
  return slot;
}

void RowStates::SetState(NodeId node, StateSlot slot) {
  prefixes_->SetState(node, slot);
  prefixes_->ThinStates(node, max_path_snapshots_);
}

void RowStates::ReleaseSlot(StateSlot slot, bool is_in_flight) {
  if (slot == kNullSlot) return;
  if (is_in_flight) {
    pool_->Quarantine(slot);
  } else {
    pool_->Free(slot);
  }
}

void RowStates::Attach(BatchRow row, const PrefixMatch& match, std::uint32_t prompt_tokens) {
  if (!is_enabled()) return;
  Row& entry = at(row);
  QUIRE_CHECK(entry.own == kNullSlot && (match.num_tokens > 0) == (match.state != kNullSlot));
  if (match.state != kNullSlot) {
    pool_->AddReader(match.state);
    entry.source = match.state;
    entry.unproven_uses.push_back({match.state, pool_->num_uses(match.state)});
  }
  entry.own = TakeSlot();
  entry.tokens = match.num_tokens;
  entry.prompt_tokens = prompt_tokens;
  entry.branch_position =
      match.tokens_without_state > 0 ? match.num_tokens + match.tokens_without_state : 0;
}

void RowStates::Reserve(BatchRow row) {
  if (SlotsForRow(row) > 0) at(row).own = TakeSlot();
}

void RowStates::Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens) {
  if (!is_enabled()) return;
  Row& from = at(parent);
  Row& to = at(child);
  QUIRE_CHECK(HasStateAfter(parent, computed_tokens) && to.own == kNullSlot);
  if (from.source == kNullSlot && computed_tokens > 0) {
    pool_->Freeze(from.own, computed_tokens);
    from.source = std::exchange(from.own, TakeSlot());
  }
  if (from.source != kNullSlot) pool_->AddReader(from.source);
  to.own = TakeSlot();
  to.source = from.source;
  to.tokens = computed_tokens;
  to.prompt_tokens = from.prompt_tokens;
  to.unproven_uses = from.unproven_uses;
}

void RowStates::Free(BatchRow row, bool is_in_flight) {
  if (!is_enabled()) return;
  Row& entry = at(row);
  ReleaseSlot(std::exchange(entry.own, kNullSlot), is_in_flight);
  ReleaseSlot(std::exchange(entry.snapshot, kNullSlot), is_in_flight);
  if (entry.source != kNullSlot) pool_->DropReader(std::exchange(entry.source, kNullSlot));
  entry.tokens = entry.prompt_tokens = entry.branch_position = entry.snapshot_tokens = 0;
  entry.unproven_uses.clear();
}

bool RowStates::HasStateAfter(BatchRow row, std::uint32_t tokens) const {
  return is_enabled() && at(row).own != kNullSlot && at(row).tokens == tokens;
}

bool RowStates::CanPublishState(BatchRow row, std::uint32_t tokens) const {
  if (tokens == 0 || !HasStateAfter(row, tokens)) return false;
  const StateSlot source = at(row).source;
  return source == kNullSlot || pool_->node(source) == kNoNode;
}

void RowStates::PublishState(BatchRow row, NodeId node, bool is_proven) {
  Row& entry = at(row);
  QUIRE_CHECK(CanPublishState(row, entry.tokens));
  if (prefixes_->state(node) != kNullSlot) return pool_->Touch(prefixes_->state(node));
  if (entry.source == kNullSlot) {
    pool_->Freeze(entry.own, entry.tokens);
    entry.source = std::exchange(entry.own, kNullSlot);
  }
  SetState(node, entry.source);
  if (is_proven) pool_->SetProvenFinite(entry.source);
}

void RowStates::PublishSnapshot(BatchRow row, NodeId node, bool is_proven) {
  Row& writer = at(row);
  const StateSlot slot = std::exchange(writer.snapshot, kNullSlot);
  const std::uint32_t tokens = std::exchange(writer.snapshot_tokens, 0);
  if (slot == kNullSlot) return;
  if (node == kNoNode || prefixes_->state(node) != kNullSlot) return pool_->Free(slot);
  pool_->Freeze(slot, tokens);
  SetState(node, slot);
  if (is_proven) {
    pool_->SetProvenFinite(slot);
  } else {
    writer.unproven_uses.push_back({slot, pool_->num_uses(slot)});
  }
  pool_->DropReader(slot);
}

void RowStates::SetProven(BatchRow row, std::uint32_t tokens) {
  if (!is_enabled()) return;
  std::erase_if(at(row).unproven_uses, [&](const SlotUse& use) {
    const bool is_same = pool_->num_uses(use.slot) == use.use;
    if (!is_same || pool_->state(use.slot) != SlotState::kFrozen) return true;
    if (pool_->tokens(use.slot) > tokens) return false;
    pool_->SetProvenFinite(use.slot);
    return true;
  });
}

std::uint32_t RowStates::LastReusablePosition(const Row& row) const {
  const std::uint32_t reusable = row.prompt_tokens - std::min(row.prompt_tokens, 1 + kSlackTokens);
  return reusable / page_size_ * page_size_;
}

std::uint32_t RowStates::LimitChunk(BatchRow row, std::uint32_t tokens) const {
  if (!is_enabled()) return tokens;
  const Row& next = at(row);
  const std::uint32_t last = LastReusablePosition(next);
  const bool has_both = next.tokens < next.branch_position && next.branch_position < last &&
                        last <= next.tokens + tokens;
  return has_both ? next.branch_position - next.tokens : tokens;
}

// The position where the prompt diverged from published pages has priority, because other prompts
// share the tokens before it. The second choice is the last page end that a repetition of the
// prompt can use. The third is the last multiple of the interval before that page end, for prompts
// that diverge from this prompt earlier.
std::uint32_t RowStates::SnapshotPosition(const Row& row, std::uint32_t begin,
                                          std::uint32_t end) const {
  const auto is_inside = [&](std::uint32_t position) {
    return position > begin && position <= end;
  };
  if (is_inside(row.branch_position)) return row.branch_position;
  const std::uint32_t last = LastReusablePosition(row);
  if (is_inside(last)) return last;
  if (snapshot_interval_ == 0) return 0;
  const std::uint32_t multiple = std::min(end, last) / snapshot_interval_ * snapshot_interval_;
  return is_inside(multiple) ? multiple : 0;
}

void RowStates::PrepareStep(std::span<const RowStep> rows,
                            absl::FunctionRef<bool(BatchRow row)> may_publish) {
  if (!is_enabled()) return;
  QUIRE_CHECK(scheduled_rows_.empty() && read_slots_.empty());
  for (const RowStep& step : rows) {
    Row& row = at(step.row);
    const std::uint32_t index = step.row.value();
    QUIRE_CHECK(row.own != kNullSlot && row.tokens == step.cache_length);
    ReleaseSlot(std::exchange(row.snapshot, kNullSlot), /*is_in_flight=*/false);
    row.snapshot_tokens = 0;
    const StateSlot source = std::exchange(row.source, kNullSlot);
    if (source != kNullSlot) read_slots_.push_back(source);
    if (row.tokens > 0) state_in_[index] = (source != kNullSlot ? source : row.own).value();
    state_out_[index] = row.own.value();
    row.tokens += step.new_tokens;
    scheduled_rows_.push_back(step.row);
  }
  for (const RowStep& step : rows) {
    Row& row = at(step.row);
    const std::uint32_t position = SnapshotPosition(row, step.cache_length, row.tokens);
    if (position == 0 || !may_publish(step.row)) continue;
    row.snapshot = pool_->Allocate();
    if (row.snapshot == kNullSlot) continue;
    row.snapshot_tokens = position;
    snapshot_at_[step.row.value()] = position;
    snapshot_slot_[step.row.value()] = row.snapshot.value();
  }
}

void RowStates::CompleteStep() {
  if (!is_enabled()) return;
  for (const StateSlot slot : read_slots_) pool_->DropReader(slot);
  read_slots_.clear();
  for (const BatchRow row : scheduled_rows_) {
    for (auto* array : {&state_in_, &state_out_, &snapshot_at_, &snapshot_slot_}) {
      (*array)[row.value()] = 0;
    }
  }
  scheduled_rows_.clear();
  pool_->FreeQuarantined();
}

std::uint32_t RowStates::num_live() const {
  std::uint32_t live = 0;
  for (const Row& row : rows_) {
    live += (row.own != kNullSlot ? 1 : 0) + (row.snapshot != kNullSlot ? 1 : 0);
  }
  return live;
}

absl::Status RowStates::CheckSlots() const {
  std::vector<std::uint32_t> writers(pool_->num_slots());
  std::vector<std::uint32_t> readers(pool_->num_slots());
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    const Row& r = rows_[row];
    for (const StateSlot slot : {r.own, r.snapshot}) ++writers[slot.value()];
    if ((r.snapshot == kNullSlot) != (r.snapshot_tokens == 0)) {
      return absl::InternalError(absl::StrCat("row ", row, " has snapshot slot ",
                                              r.snapshot.value(), " after ", r.snapshot_tokens,
                                              " tokens"));
    }
    if (r.source == kNullSlot) continue;
    ++readers[r.source.value()];
    if (r.own == kNullSlot || pool_->tokens(r.source) != r.tokens) {
      return absl::InternalError(absl::StrCat("row ", row, " has ", r.tokens,
                                              " tokens but reads slot ", r.source.value(),
                                              ", which has ", pool_->tokens(r.source)));
    }
  }
  for (const StateSlot slot : read_slots_) ++readers[slot.value()];
  for (std::uint32_t slot = 1; slot < pool_->num_slots(); ++slot) {
    const std::uint32_t live = pool_->state(StateSlot{slot}) == SlotState::kLive ? 1 : 0;
    if (writers[slot] != live || readers[slot] != pool_->readers(StateSlot{slot})) {
      return absl::InternalError(
          absl::StrCat("slot ", slot, " is ", SlotStateName(pool_->state(StateSlot{slot})),
                       " with ", pool_->readers(StateSlot{slot}), " readers, but ", writers[slot],
                       " rows write and ", readers[slot], " rows and steps read it"));
    }
  }
  return absl::OkStatus();
}

absl::Status RowStates::CheckStep() const {
  std::vector<bool> is_written(pool_->num_slots());
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    for (const std::uint32_t slot : {state_out_[row], snapshot_slot_[row]}) {
      if (slot == 0) continue;
      const SlotState state = pool_->state(StateSlot{slot});
      if (is_written[slot] || (state != SlotState::kLive && state != SlotState::kQuarantined)) {
        return absl::InternalError(absl::StrCat("the step writes slot ", slot, " of row ", row,
                                                ", which is ", SlotStateName(state),
                                                is_written[slot] ? " and written twice" : ""));
      }
      is_written[slot] = true;
    }
  }
  for (std::uint32_t row = 0; row < rows_.size(); ++row) {
    const std::uint32_t in = state_in_[row];
    if (in != 0 && in != state_out_[row] && is_written[in]) {
      return absl::InternalError(absl::StrCat("the step reads slot ", in, " for row ", row,
                                              " and writes it for another row"));
    }
  }
  return absl::OkStatus();
}

absl::Status RowStates::CheckIntegrity() const {
  if (!is_enabled()) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckSlots());
  return CheckStep();
}

}  // namespace quire::cache
