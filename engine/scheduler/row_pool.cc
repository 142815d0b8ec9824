#include "engine/scheduler/row_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "engine/scheduler/preemption.h"

namespace quire::engine {
namespace {

void InsertByAdmission(std::vector<Sequence*>& list, Sequence* sequence) {
  auto before = [](const Sequence* a, const Sequence* b) {
    return std::pair(a->admission_number, a->choice) < std::pair(b->admission_number, b->choice);
  };
  list.insert(std::upper_bound(list.begin(), list.end(), sequence, before), sequence);
}

}  // namespace

void RefreshState(ScheduledRequest& request) {
  bool prefills = false;
  bool decodes = false;
  bool is_stalled = true;
  bool is_preempted = false;
  for (const auto& sequence : request.sequences) {
    prefills |= sequence->state() == SequenceState::kPrefill;
    decodes |= sequence->state() == SequenceState::kDecode;
    is_preempted |= sequence->state() == SequenceState::kPreempted;
    if (sequence->active()) is_stalled &= sequence->is_stalled;
  }
  RequestState state = RequestState::kQueued;
  if (prefills || decodes) {
    state = is_stalled ? RequestState::kStalled
            : prefills ? RequestState::kPrefill
                       : RequestState::kDecode;
  } else if (is_preempted) {
    state = RequestState::kPreempted;
  }
  request.progress().state.store(state, std::memory_order_release);
}

void SetPages(Sequence& sequence, std::uint32_t pages) {
  sequence.request->progress().pages.fetch_add(
      static_cast<std::int32_t>(pages) - static_cast<std::int32_t>(sequence.num_pages),
      std::memory_order_relaxed);
  sequence.num_pages = pages;
}

RowPool::RowPool(const EngineOptions& options, const SchedulerPolicy& policy,
                 cache::CacheManager* cache, const StepCounter* steps)
    : cache_(cache),
      steps_(steps),
      admission_(options.admission),
      max_preemptions_(policy.max_preemptions),
      num_rows_(static_cast<std::size_t>(options.max_running_sequences)) {
  for (std::size_t row = num_rows_; row > 0; --row) {
    free_rows_.push_back(static_cast<std::uint32_t>(row - 1));
  }
  running_.reserve(num_rows_);
}

void RowPool::TakeRow(Sequence& sequence) {
  QUIRE_CHECK(!sequence.row.has_value() && !free_rows_.empty());
  sequence.row = BatchRow{free_rows_.back()};
  free_rows_.pop_back();
}

void RowPool::ReleaseRow(Sequence& sequence) {
  free_rows_.push_back(sequence.row->value());
  sequence.row.reset();
  SetPages(sequence, 0);
}

void RowPool::Enter(Sequence& sequence, SequenceState state, WaitCause cause) {
  ++transitions_[sequence.Enter(state, cause)];
}

void RowPool::Start(Sequence& sequence, const cache::PrefixMatch& match) {
  ScheduledRequest& request = *sequence.request;
  Enter(sequence, SequenceState::kPrefill);
  sequence.computed = match.num_tokens;
  if (match.partial_rows > 0) steps_->NoteCopy(request);
  std::erase(preempted_, &sequence);
  InsertByAdmission(running_, &sequence);
  for (std::size_t i = 1; !request.forked && i < request.sequences.size(); ++i) {
    Sequence& sibling = *request.sequences[i];
    TakeRow(sibling);
    sibling.admission_number = sequence.admission_number;
    Enter(sibling, SequenceState::kWaiting, WaitCause::kFirstChoice);
    InsertByAdmission(running_, &sibling);
  }
}

GrowResult RowPool::Grow(Sequence& sequence, std::uint32_t tokens, bool has_step_in_flight,
                         std::vector<Sequence*>* preempted) {
  if (tokens <= cache_->reserved_tokens(*sequence.row)) return GrowResult::kGrown;
  while (true) {
    const absl::Status status =
        cache_->Reserve(*sequence.row, std::max(tokens, sequence.total()), tokens);
    if (status.ok()) {
      SetPages(sequence, cache_->num_pages(*sequence.row));
      return GrowResult::kGrown;
    }
    if (admission_ == AdmissionMode::kSafe) return GrowResult::kNoPages;
    // The pages of a victim in flight could not be used before its step has ended.
    if (has_step_in_flight) return GrowResult::kNeedsOutcome;
    Sequence* const victim = ChooseVictim(running_, cache_->page_size(), max_preemptions_,
                                          [this](const Sequence& candidate) {
                                            return cache_->num_private_pages(*candidate.row) > 0;
                                          });
    if (victim == nullptr) return GrowResult::kNoPages;
    Preempt(*victim);
    preempted->push_back(victim);
    if (victim == &sequence) return GrowResult::kNoPages;
  }
}

// The partial last page can be matched later too, unless the copy that fills it has not run yet.
void RowPool::FreePages(Sequence& sequence) {
  const ScheduledRequest& request = *sequence.request;
  sequence.proven_tokens = cache_->proven_tokens(*sequence.row);
  if (request.request.cache.skip_write || steps_->HasPendingCopy(request)) {
    cache_->Free(*sequence.row);
  } else {
    cache_->FreeKeepingTail(*sequence.row, sequence.cache_tokens(), sequence.keys,
                            sequence.computed);
  }
  ReleaseRow(sequence);
}

void RowPool::MoveToPreempted(Sequence& sequence) {
  std::erase(running_, &sequence);
  Enter(sequence, SequenceState::kPreempted);
  sequence.computed = 0;
  ++sequence.preemptions;
  InsertByAdmission(preempted_, &sequence);
}

void RowPool::Preempt(Sequence& sequence) {
  ScheduledRequest& request = *sequence.request;
  QUIRE_CHECK(sequence.in_flight == 0 && sequence.samples_in_flight == 0);
  FreePages(sequence);
  MoveToPreempted(sequence);
  for (std::size_t i = 1; !request.forked && i < request.sequences.size(); ++i) {
    Sequence& sibling = *request.sequences[i];
    ReleaseRow(sibling);
    Enter(sibling, SequenceState::kQueued);
    std::erase(running_, &sibling);
  }
  RefreshState(request);
}

void RowPool::Fork(ScheduledRequest& request) {
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
      steps_->NoteCopy(request);
      continue;
    }
    ReleaseRow(child);
    MoveToPreempted(child);
  }
  RefreshState(request);
}

void RowPool::ReleaseOutsideWindow(Sequence& sequence) {
  if (!cache_->demand().has_windows()) return;
  cache_->ReleaseOutsideWindow(*sequence.row, sequence.computed);
  SetPages(sequence, cache_->num_pages(*sequence.row));
}

void RowPool::Finish(Sequence& sequence) {
  QUIRE_CHECK(sequence.row.has_value() || sequence.state() == SequenceState::kPreempted);
  if (sequence.row.has_value()) {
    FreePages(sequence);
    std::erase(running_, &sequence);
  } else {
    std::erase(preempted_, &sequence);
  }
  Enter(sequence, SequenceState::kFinished);
  sequence.completed = true;
}

void RowPool::Drop(Sequence& sequence, bool invalidate) {
  if (sequence.row.has_value()) {
    sequence.proven_tokens = cache_->proven_tokens(*sequence.row);
    if (invalidate) {
      cache_->Invalidate(*sequence.row, sequence.cache_tokens(), sequence.keys,
                         sequence.proven_tokens);
    } else {
      cache_->Free(*sequence.row);
    }
    ReleaseRow(sequence);
  }
  std::erase(running_, &sequence);
  std::erase(preempted_, &sequence);
  sequence.invalidated |= invalidate;
  if (!sequence.finished()) Enter(sequence, SequenceState::kFinished);
}

// Returns the number of sequences in a state: the transitions into it minus those out of it.
std::int64_t RowPool::CountIn(SequenceState state, WaitCause cause) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < kSequenceTransitions.size(); ++i) {
    const SequenceTransition& transition = kSequenceTransitions[i];
    if (transition.to == state && transition.to_cause == cause) count += transitions_[i];
    if (transition.from == state && transition.from_cause == cause) count -= transitions_[i];
  }
  return count;
}

absl::Status RowPool::CheckTransitions() const {
  const std::int64_t active = CountIn(SequenceState::kPrefill, WaitCause::kNone) +
                              CountIn(SequenceState::kDecode, WaitCause::kNone);
  const std::int64_t forking = CountIn(SequenceState::kWaiting, WaitCause::kFirstChoice);
  const std::int64_t preempted = CountIn(SequenceState::kPreempted, WaitCause::kNone);
  if (active + forking != static_cast<std::int64_t>(running_.size()) ||
      preempted != static_cast<std::int64_t>(preempted_.size())) {
    return absl::InternalError(absl::StrCat(
        running_.size(), " sequences run and ", preempted_.size(), " are preempted, but their ",
        "transitions add up to ", active + forking, " and ", preempted));
  }
  return absl::OkStatus();
}

absl::Status RowPool::CheckRow(const Sequence& s) const {
  const auto name = absl::StrCat("choice ", s.choice, " of request ", s.request->request.id);
  if (!s.row.has_value()) return absl::InternalError(name + " runs without a row");
  const bool has_pages = !s.waits_for(WaitCause::kFirstChoice);
  // A window of one token can leave a row without pages between two steps.
  const bool may_lack_pages = !has_pages || cache_->demand().has_windows();
  if (s.num_pages != cache_->num_pages(*s.row) || (s.num_pages > 0 && !has_pages) ||
      (s.num_pages == 0 && !may_lack_pages)) {
    return absl::InternalError(absl::StrCat(name, " counts ", s.num_pages, " pages, its row has ",
                                            cache_->num_pages(*s.row)));
  }
  if (has_pages && s.computed >= s.total()) {
    return absl::InternalError(
        absl::StrCat(name, " has computed ", s.computed, " of ", s.total(), " tokens"));
  }
  if (s.state() == SequenceState::kDecode && s.computed + 1 != s.total()) {
    return absl::InternalError(
        absl::StrCat(name, " decodes with ", s.total() - s.computed, " tokens to compute"));
  }
  if (has_pages && (s.launched() > s.known() || s.samples_in_flight > s.in_flight)) {
    return absl::InternalError(absl::StrCat(name, " has launched ", s.launched(), " of ", s.known(),
                                            " known tokens, with ", s.samples_in_flight,
                                            " samples for ", s.in_flight, " tokens in flight"));
  }
  return absl::OkStatus();
}

absl::Status RowPool::CheckIntegrity() const {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckRow(*running_[i]));
    if (i > 0 && running_[i - 1]->admission_number > running_[i]->admission_number) {
      return absl::InternalError(absl::StrCat("request ", running_[i]->request->request.id,
                                              " runs before an older sequence"));
    }
  }
  if (free_rows_.size() + running_.size() != num_rows_) {
    return absl::InternalError(absl::StrCat(free_rows_.size() + running_.size(),
                                            " rows are free or in use, but there are ", num_rows_));
  }
  for (const Sequence* s : preempted_) {
    if (s->row.has_value() || s->num_pages != 0 || s->state() != SequenceState::kPreempted) {
      return absl::InternalError("a preempted sequence holds a row or pages");
    }
  }
  return CheckTransitions();
}

}  // namespace quire::engine
