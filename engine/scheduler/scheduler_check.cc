// The invariants of Scheduler.

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {

// Transitions into a state less those out of it: the sequences that are in it.
std::int64_t Scheduler::Balance(SequenceState state, WaitCause cause) const {
  std::int64_t balance = 0;
  for (std::size_t i = 0; i < kSequenceTransitions.size(); ++i) {
    const SequenceTransition& transition = kSequenceTransitions[i];
    if (transition.to == state && transition.to_cause == cause) balance += transitions_[i];
    if (transition.from == state && transition.from_cause == cause) balance -= transitions_[i];
  }
  return balance;
}

absl::Status Scheduler::CheckTransitions() const {
  const std::int64_t active = Balance(SequenceState::kPrefill, WaitCause::kNone) +
                              Balance(SequenceState::kDecode, WaitCause::kNone);
  const std::int64_t forking = Balance(SequenceState::kWaiting, WaitCause::kFirstChoice);
  const std::int64_t preempted = Balance(SequenceState::kPreempted, WaitCause::kNone);
  if (active + forking != static_cast<std::int64_t>(running_.size()) ||
      preempted != static_cast<std::int64_t>(preempted_.size())) {
    return absl::InternalError(absl::StrCat(running_.size(), " sequences run and ",
                                            preempted_.size(), " are preempted, by their ",
                                            "transitions ", active + forking, " and ", preempted));
  }
  return absl::OkStatus();
}

// Safe mode: the reservations fit the pool, no request holds more than its own, and no sequence is
// preempted.
absl::Status Scheduler::CheckReservations() const {
  if (options_.admission != AdmissionMode::kSafe) return absl::OkStatus();
  if (reserved_pages_ > cache_->usable_pages() || !preempted_.empty()) {
    return absl::InternalError(absl::StrCat(reserved_pages_, " pages of ", cache_->usable_pages(),
                                            " are reserved, ", preempted_.size(),
                                            " sequences are preempted in safe mode"));
  }
  absl::flat_hash_map<const ScheduledRequest*, std::uint32_t> held;
  for (const Sequence* s : running_) held[s->request] += cache_->num_private_pages(*s->row);
  for (const auto& [request, pages] : held) {
    if (pages <= request->reserved_pages) continue;
    return absl::InternalError(absl::StrCat("request ", request->request.id, " holds ", pages,
                                            " pages, ", request->reserved_pages,
                                            " are reserved for it"));
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckIntegrity() const {
  std::size_t rows = free_rows_.size();
  std::uint32_t reserved = 0;
  const ScheduledRequest* last = nullptr;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const Sequence& s = *running_[i];
    const auto name = absl::StrCat("choice ", s.choice, " of request ", s.request->request.id);
    if (!s.row.has_value()) return absl::InternalError(name + " runs without a row");
    ++rows;
    if (i > 0 && running_[i - 1]->admission > s.admission) {
      return absl::InternalError(name + " stands before an older sequence");
    }
    const bool has_pages = !s.waits_for(WaitCause::kFirstChoice);
    // A window of one token can leave a row without pages between two steps.
    const bool may_lack_pages = !has_pages || cache_->demand().has_windows();
    if (s.pages != cache_->num_pages(*s.row) || (s.pages > 0 && !has_pages) ||
        (s.pages == 0 && !may_lack_pages)) {
      return absl::InternalError(absl::StrCat(name, " counts ", s.pages, " pages, its row has ",
                                              cache_->num_pages(*s.row)));
    }
    if (has_pages && s.computed >= s.total()) {
      return absl::InternalError(
          absl::StrCat(name, " has computed ", s.computed, " of ", s.total()));
    }
    if (s.state() == SequenceState::kDecode && s.computed + 1 != s.total()) {
      return absl::InternalError(
          absl::StrCat(name, " decodes with ", s.total() - s.computed, " tokens to compute"));
    }
    if (has_pages && (s.launched() > s.known() || s.samples_in_flight > s.in_flight)) {
      return absl::InternalError(absl::StrCat(name, " has launched ", s.launched(),
                                              " tokens and samples ", s.samples_in_flight,
                                              " after ", s.total()));
    }
    if (s.request != last) reserved += s.request->reserved_pages;
    last = s.request;
  }
  if (rows != num_rows_) {
    return absl::InternalError(
        absl::StrCat(rows, " rows are free or in use, there are ", num_rows_));
  }
  QUIRE_RETURN_IF_ERROR(CheckReservations());
  for (const Sequence* s : preempted_) {
    if (s->row.has_value() || s->pages != 0 || s->state() != SequenceState::kPreempted) {
      return absl::InternalError("a preempted sequence holds a row or pages");
    }
  }
  QUIRE_RETURN_IF_ERROR(CheckTransitions());
  if (preempted_.empty() && reserved != reserved_pages_) {
    return absl::InternalError(absl::StrCat("reservations add up to ", reserved, " pages, ",
                                            reserved_pages_, " are counted"));
  }
  return waiting_.CheckIntegrity();
}

}  // namespace quire::engine
