// How sequences move between states: what they take, share and give back on the way.

#include <algorithm>
#include <utility>

#include "base/check.h"
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
  sequence.proven = cache_->proven_tokens(*sequence.row);
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
      SetPages(child, cache_->num_pages(*child.row));
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
  SetPages(sequence, cache_->num_pages(*sequence.row));
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
    CountWaiting(request, -1);
  }
  for (const auto& sequence : request.sequences) {
    if (blocked_.sequence == sequence.get()) blocked_ = {};
    if (sequence->row.has_value()) {
      sequence->proven = cache_->proven_tokens(*sequence->row);
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

}  // namespace quire::engine
