// The part of Scheduler that moves sequences between states: fork, preemption, end, checks.

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/scheduler/preemption.h"
#include "engine/scheduler/scheduler.h"

namespace quire::engine {

void RefreshState(ScheduledRequest& request) {
  bool prefills = false;
  bool decodes = false;
  bool skips = true;
  bool is_preempted = false;
  for (const auto& sequence : request.sequences) {
    prefills |= sequence->state() == SequenceState::kPrefill;
    decodes |= sequence->state() == SequenceState::kDecode;
    is_preempted |= sequence->state() == SequenceState::kPreempted;
    if (sequence->active()) skips &= sequence->skips;
  }
  RequestState state = RequestState::kQueued;
  if (prefills || decodes) {
    state = skips      ? RequestState::kStalled
            : prefills ? RequestState::kPrefill
                       : RequestState::kDecode;
  } else if (is_preempted) {
    state = RequestState::kPreempted;
  }
  request.progress().state.store(state, std::memory_order_release);
}

void Scheduler::Enter(Sequence& sequence, SequenceState state, WaitCause cause) {
  ++transitions_[sequence.Enter(state, cause)];
}

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

void Scheduler::StartDecode(Sequence& sequence) {
  Enter(sequence, SequenceState::kDecode);
  RefreshState(*sequence.request);
}

void Scheduler::InsertByAdmission(std::vector<Sequence*>& list, Sequence* sequence) {
  auto before = [](const Sequence* a, const Sequence* b) {
    return std::pair(a->admission, a->choice) < std::pair(b->admission, b->choice);
  };
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, before), sequence);
}

void Scheduler::TakeRow(Sequence& sequence) {
  QUIRE_CHECK(!sequence.row.has_value() && !free_rows_.empty());
  sequence.row = BatchRow{free_rows_.back()};
  free_rows_.pop_back();
}

void Scheduler::ReleaseRow(Sequence& sequence) {
  free_rows_.push_back(sequence.row->value());
  sequence.row.reset();
  SetPages(sequence, 0);
}

void Scheduler::SetPages(Sequence& sequence, std::uint32_t pages) {
  sequence.request->progress().pages.fetch_add(
      static_cast<std::int32_t>(pages) - static_cast<std::int32_t>(sequence.pages),
      std::memory_order_relaxed);
  sequence.pages = pages;
}

// The copies that are queued now go with the step that is launched next.
void Scheduler::NoteCopy(ScheduledRequest& request) {
  if (!HasPendingCopy(request)) request.first_copy_step = launched_ + 1;
  request.last_copy_step = launched_ + 1;
}

// The last page stays findable too, unless what it should hold has not been copied yet.
void Scheduler::GivePagesBack(Sequence& sequence) {
  const ScheduledRequest& request = *sequence.request;
  if (request.request.cache.skip_write || HasPendingCopy(request)) {
    cache_->Free(*sequence.row);
  } else {
    cache_->FreeKeepingTail(*sequence.row, sequence.cache_tokens(), sequence.keys,
                            sequence.computed);
  }
  ReleaseRow(sequence);
}

void Scheduler::Preempt(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  QUIRE_CHECK(sequence.in_flight == 0 && sequence.samples_in_flight == 0);
  GivePagesBack(sequence);
  std::erase(running_, &sequence);
  Enter(sequence, SequenceState::kPreempted);
  sequence.computed = 0;
  ++sequence.preemptions;
  InsertByAdmission(preempted_, &sequence);
  for (std::size_t i = 1; !request.forked && i < request.sequences.size(); ++i) {
    Sequence& sibling = *request.sequences[i];
    ReleaseRow(sibling);
    Enter(sibling, SequenceState::kQueued);
    std::erase(running_, &sibling);
  }
  plan_.preempted.push_back(&sequence);
  RefreshState(request);
}

void Scheduler::Fork(ScheduledRequest& request) {
  const Sequence& parent = request.first();
  request.forked = true;
  for (std::size_t i = 1; i < request.sequences.size(); ++i) {
    Sequence& child = *request.sequences[i];
    child.computed = parent.computed;
    child.high_water = parent.computed;
    cache_->SetPublish(*child.row, !request.request.cache.skip_write);
    if (cache_->Fork(*parent.row, *child.row, parent.computed).ok()) {
      Enter(child, SequenceState::kDecode);
      SetPages(child, cache_->pages_of(*child.row));
      NoteCopy(request);
      continue;
    }
    ReleaseRow(child);
    std::erase(running_, &child);
    Enter(child, SequenceState::kPreempted);
    child.computed = 0;
    ++child.preemptions;
    InsertByAdmission(preempted_, &child);
  }
  RefreshState(request);
}

void Scheduler::ReleaseOutsideWindow(Sequence& sequence) {
  if (!cache_->demand().has_windows()) return;
  cache_->ReleaseOutsideWindow(*sequence.row, sequence.computed);
  SetPages(sequence, cache_->pages_of(*sequence.row));
}

void Scheduler::EndChoice(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  --request.live_choices;
  if (request.reserved_pages == 0) return;
  // The pages that choices share are given back with the last of them.
  std::uint32_t pages = request.prompt.worst_pages_first - request.prompt.shared_pages;
  if (request.live_choices == 0) pages = request.reserved_pages;
  request.reserved_pages -= pages;
  reserved_pages_ -= pages;
}

void Scheduler::Finish(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  QUIRE_CHECK(sequence.row.has_value() || sequence.state() == SequenceState::kPreempted);
  if (sequence.row.has_value()) {
    GivePagesBack(sequence);
    std::erase(running_, &sequence);
  } else {
    std::erase(preempted_, &sequence);
  }
  Enter(sequence, SequenceState::kFinished);
  sequence.completed = true;
  EndChoice(sequence);
  RefreshState(request);
}

void Scheduler::Remove(ScheduledRequest& request, bool invalidate) {
  if (!request.was_scheduled && waiting_.Remove(&request)) {
    waiting_uncached_tokens_ -= request.uncached_tokens;
  }
  for (const auto& sequence : request.sequences) {
    if (blocked_.sequence == sequence.get()) blocked_ = {};
    if (sequence->row.has_value()) {
      if (invalidate) {
        cache_->Invalidate(*sequence->row, sequence->cache_tokens(), sequence->keys,
                           sequence->proven);
      } else {
        cache_->Free(*sequence->row);
      }
      ReleaseRow(*sequence);
    }
    std::erase(running_, sequence.get());
    std::erase(preempted_, sequence.get());
    sequence->invalidated |= invalidate;
    if (!sequence->finished()) Enter(*sequence, SequenceState::kFinished);
  }
  reserved_pages_ -= request.reserved_pages;
  request.reserved_pages = 0;
  LeaveTenant(request);
}

void Scheduler::LeaveTenant(ScheduledRequest& request) {
  if (request.of_tenant == nullptr) return;  // it never came here, or has left
  TenantRequests& requests = *request.of_tenant;
  request.of_tenant = nullptr;
  --requests.live;
  if (request.was_scheduled) --requests.running;
  QUIRE_CHECK(requests.running >= 0 && requests.running <= requests.live);
  if (requests.live == 0) tenants_.erase(request.request.tenant);
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
    return absl::InternalError(absl::StrCat(
        reserved_pages_, " pages of ", cache_->usable_pages(), " are reserved, ",
        preempted_.size(), " sequences are preempted in safe mode"));
  }
  absl::flat_hash_map<const ScheduledRequest*, std::uint32_t> held;
  for (const Sequence* s : running_) held[s->request] += cache_->private_pages_of(*s->row);
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
    if (s.pages != cache_->pages_of(*s.row) || (s.pages > 0 && !has_pages) ||
        (s.pages == 0 && !may_lack_pages)) {
      return absl::InternalError(absl::StrCat(name, " counts ", s.pages, " pages, its row has ",
                                              cache_->pages_of(*s.row)));
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
  QUIRE_RETURN_IF_ERROR(waiting_.CheckIntegrity());
  return cache_->CheckIntegrity();
}

}  // namespace quire::engine
