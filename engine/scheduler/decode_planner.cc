#include "engine/scheduler/decode_planner.h"

#include <algorithm>

#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {
namespace {

// True if the prompt is computed or in flight and the next token is not the last one. Only the last
// known token is then left to launch.
bool CanDecode(const Sequence& sequence) {
  if (sequence.state() != SequenceState::kDecode && sequence.samples_in_flight == 0) return false;
  return sequence.active() && sequence.launched() + 1 == sequence.known() &&
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
    const GrowResult result =
        rows_->Grow(*sequence, sequence->known(), has_step_in_flight, &draft_->plan().preempted);
    if (result == GrowResult::kGrown) ready_rows_.push_back(sequence);
    needs_outcome |= result == GrowResult::kNeedsOutcome;
  }
  return !needs_outcome;
}

void DecodePlanner::AddRows(const Admission& admission) {
  std::erase_if(ready_rows_, [](const Sequence* sequence) { return !sequence->active(); });
  std::size_t limit = draft_->budget();
  const std::size_t without_prompts = limit > page_size_ ? limit - page_size_ : limit;
  // If the decode rows and a page of prompt tokens both fit, the limit need not be lowered, and
  // AnyMayStart is not called. A budget of at most one page is never lowered.
  if (ready_rows_.size() > without_prompts && (num_prompts_ > 0 || admission.AnyMayStart())) {
    limit = without_prompts;
  }
  if (ready_rows_.size() > limit) ready_rows_.resize(limit);
  for (Sequence* sequence : ready_rows_) draft_->AddDecode(*sequence);
}

}  // namespace quire::engine
