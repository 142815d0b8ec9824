#include "engine/scheduler/prefill_planner.h"

#include <algorithm>
#include <tuple>

#include "engine/scheduler/prompt_rank.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

PrefillPlanner::PrefillPlanner(const SchedulerPolicy& policy, const Parts& parts)
    : steps_per_oldest_first_(policy.steps_per_oldest_first),
      cache_(parts.cache),
      rows_(parts.rows),
      admission_(parts.admission),
      draft_(parts.draft) {
  prompts_.reserve(rows_->num_rows());
}

bool PrefillPlanner::TakePages(bool has_step_in_flight) {
  needs_outcome_ = false;
  OrderPrompts();
  std::uint32_t left = std::min(draft_->budget(), draft_->prompt_budget());
  for (Sequence* sequence : prompts_) {
    if (left == 0 || needs_outcome_) break;
    if (!sequence->active()) continue;  // preempted for an earlier prompt
    const std::uint32_t remaining = sequence->total() - sequence->launched();
    left -= TakeChunkPages(*sequence, std::min({remaining, draft_->max_chunk(), left}),
                           has_step_in_flight);
  }
  return !needs_outcome_;
}

// Reserves pages for as much of the chunk as possible, and returns the number of its tokens that
// have pages. A victim is preempted only if the row could compute no token otherwise.
std::uint32_t PrefillPlanner::TakeChunkPages(Sequence& sequence, std::uint32_t chunk,
                                             bool has_step_in_flight) {
  const std::uint32_t begin = sequence.launched();
  std::uint32_t reserved = cache_->reserved_tokens(*sequence.row);
  while (reserved < begin + chunk) {
    std::uint32_t pages_per_group =
        cache_->available_pages() / cache_->demand().num_window_groups();
    if (reserved == begin) pages_per_group = std::max(pages_per_group, 1u);
    if (pages_per_group == 0) break;
    const std::uint64_t end = std::min<std::uint64_t>(
        begin + chunk, reserved + std::uint64_t{pages_per_group} * cache_->page_size());
    const GrowResult result = rows_->Grow(sequence, static_cast<std::uint32_t>(end),
                                          has_step_in_flight, &draft_->plan().preempted);
    needs_outcome_ |= result == GrowResult::kNeedsOutcome;
    if (result != GrowResult::kGrown) {
      if (!sequence.active()) return 0;
      break;
    }
    reserved = cache_->reserved_tokens(*sequence.row);
  }
  return std::min(reserved - begin, chunk);
}

void PrefillPlanner::OrderPrompts() {
  prompts_.clear();
  for (Sequence* sequence : rows_->running()) {
    if (sequence->state() != SequenceState::kPrefill || sequence->is_stalled) continue;
    if (sequence->launched() < sequence->total()) prompts_.push_back(sequence);
  }
  if (prompts_.empty()) return;
  const auto begin = prompts_.begin() + (serves_oldest_first() ? 1 : 0);
  const auto sort_by = [&](const auto& key) {
    std::sort(begin, prompts_.end(),
              [&key](const Sequence* a, const Sequence* b) { return key(*a) < key(*b); });
  };
  sort_by([](const Sequence& sequence) {
    return std::tuple(RankOf(sequence), sequence.admission_number, sequence.choice);
  });
  // The prompts of one tenant are in order already.
  const bool has_one_tenant = std::all_of(begin, prompts_.end(), [&](const Sequence* sequence) {
    return sequence->request->tenant_requests == prompts_.back()->request->tenant_requests;
  });
  if (has_one_tenant) return;
  for (Sequence* sequence : prompts_) sequence->request->tenant_requests->num_prompts = 0;
  for (auto it = begin; it != prompts_.end(); ++it) {
    (*it)->tenant_prompt_index = (*it)->request->tenant_requests->num_prompts++;
  }
  sort_by([](const Sequence& sequence) {
    return std::tuple(sequence.tenant_prompt_index, RankOf(sequence).length_class,
                      sequence.admission_number, sequence.choice);
  });
}

void PrefillPlanner::Plan(absl::Time now) {
  OrderPrompts();
  bool is_oldest = serves_oldest_first();
  bool admits = true;
  for (Sequence* sequence : prompts_) {
    // Waiting requests are admitted before longer prompts, but not before the oldest prompt in a
    // step that serves the oldest prompt first.
    if (!is_oldest && admits) admits = admission_->AdmitBefore(sequence, now);
    is_oldest = false;
    const std::uint32_t room = cache_->reserved_tokens(*sequence->row) - sequence->launched();
    std::uint32_t chunk = draft_->ChunkTokens(sequence->launched(), sequence->chunk_end(), room);
    if (chunk == 0) {
      admits = false;  // no waiting request passes this prompt
      break;
    }
    chunk = cache_->LimitChunk(*sequence->row, chunk);
    const std::uint32_t end = sequence->launched() + chunk;
    if (draft_->ForksAfter(*sequence, end) && !draft_->HasRoomToFork(*sequence, end)) continue;
    draft_->AddChunk(*sequence, chunk);
  }
  if (admits) admission_->AdmitBefore(/*next=*/nullptr, now);
  if (!draft_->plan().prefills.empty()) ++prompt_steps_;
}

}  // namespace quire::engine
