#include "engine/scheduler/decode_planner.h"

#include <algorithm>

#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {
namespace {

// Returns the number of tokens that the sequence has not launched yet, including those that a step
// in flight will sample.
std::uint32_t NextTokens(const Sequence& sequence) {
  return sequence.known() - sequence.launched();
}

// True if the prompt is computed or in flight and the next token is not the last one.
bool CanDecode(const Sequence& sequence) {
  if (sequence.state() != SequenceState::kDecode && sequence.samples_in_flight == 0) return false;
  return sequence.active() && NextTokens(sequence) == 1 &&
         sequence.output_tokens() + static_cast<std::int32_t>(sequence.samples_in_flight) <
             sequence.request->prompt.max_tokens;
}

bool NeedsOutcome(const Sequence& sequence) {
  const ScheduledRequest& request = *sequence.request;
  return sequence.samples_in_flight > 0 && !request.forked && request.choices() > 1;
}

}  // namespace

DecodePlanner::DecodePlanner(std::uint32_t page_size, RowPool* rows, StepDraft* draft)
    : page_size_(page_size), rows_(rows), draft_(draft) {
  selected_rows_.reserve(rows_->num_rows());
  ready_rows_.reserve(rows_->num_rows());
}

bool DecodePlanner::Select() {
  selected_rows_.clear();
  has_waiting_stream_ = false;
  num_prompts_ = rows_->preempted().size();
  bool needs_outcome = false;
  for (Sequence* sequence : rows_->running()) {
    if (sequence->state() == SequenceState::kPrefill && sequence->launched() < sequence->total()) {
      ++num_prompts_;
    }
    needs_outcome |= NeedsOutcome(*sequence);
    if (!CanDecode(*sequence)) continue;
    if (!sequence->is_stalled) selected_rows_.push_back(sequence);
    has_waiting_stream_ |= sequence->request->client_stalled_since == absl::InfiniteFuture();
  }
  return !needs_outcome;
}

bool DecodePlanner::TakePages(bool has_step_in_flight) {
  ready_rows_.clear();
  bool needs_outcome = false;
  for (Sequence* sequence : selected_rows_) {
    if (!sequence->active()) continue;  // preempted for an earlier row
    const std::uint32_t end = sequence->launched() + NextTokens(*sequence);
    const GrowResult result =
        rows_->Grow(*sequence, end, has_step_in_flight, &draft_->plan().preempted);
    if (result == GrowResult::kGrown) ready_rows_.push_back(sequence);
    needs_outcome |= result == GrowResult::kNeedsOutcome;
  }
  return !needs_outcome;
}

void DecodePlanner::AddRows(const Admission& admission) {
  std::uint32_t tokens = 0;
  std::erase_if(ready_rows_, [](const Sequence* sequence) { return !sequence->active(); });
  for (const Sequence* sequence : ready_rows_) tokens += NextTokens(*sequence);
  std::uint32_t limit = draft_->budget();
  const std::uint32_t without_prompts = limit > page_size_ ? limit - page_size_ : limit;
  // If the decode rows and a page of prompt tokens both fit, the limit need not be lowered, and
  // AnyMayStart is not called. A budget of at most one page is never lowered.
  if (tokens > without_prompts && (num_prompts_ > 0 || admission.AnyMayStart())) {
    limit = without_prompts;
  }
  for (Sequence* sequence : ready_rows_) {
    const std::uint32_t next = NextTokens(*sequence);
    if (draft_->plan().num_tokens + next > limit) break;
    draft_->AddDecode(*sequence, next);
  }
}

}  // namespace quire::engine
