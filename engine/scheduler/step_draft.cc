#include "engine/scheduler/step_draft.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

StepDraft::StepDraft(const EngineOptions& options, const SchedulerPolicy& policy,
                     const cache::CacheManager* cache, const StepTimeModel* model)
    : policy_(policy),
      admission_(options.admission),
      cache_(cache),
      model_(model),
      page_size_(cache->page_size()),
      max_window_chunk_(MaxChunkTokens(options, page_size_)) {
  const auto rows = static_cast<std::size_t>(options.max_running_sequences);
  plan_.decodes.reserve(rows);
  plan_.prefills.reserve(rows);
}

void StepDraft::Begin(const HotOptions& options) {
  plan_.Clear();
  budget_ = static_cast<std::uint32_t>(options.max_step_tokens);
  prompt_budget_ = std::max(static_cast<std::uint32_t>(options.max_step_prompt_tokens), page_size_);
  max_chunk_ = static_cast<std::uint32_t>(options.prefill_chunk_tokens);
  if (cache_->demand().has_windows()) max_chunk_ = std::min(max_chunk_, max_window_chunk_);
  fork_pages_ = 0;
  fork_slots_ = 0;
  time_target_ = absl::InfiniteDuration();
}

void StepDraft::AddDecode(Sequence& sequence) {
  plan_.decodes.push_back({&sequence, /*num_tokens=*/1});
  plan_.work.AddDecode(sequence.launched());
  ++plan_.num_tokens;
  --budget_;
}

void StepDraft::AddChunk(Sequence& sequence, std::uint32_t num_tokens) {
  fork_pages_ += ForkPages(sequence, sequence.launched() + num_tokens);
  fork_slots_ += ForkSlots(sequence, sequence.launched() + num_tokens);
  plan_.prefills.push_back({&sequence, num_tokens});
  plan_.work.AddPrompt(sequence.launched(), num_tokens);
  plan_.num_tokens += num_tokens;
  budget_ -= num_tokens;
  prompt_budget_ -= num_tokens;
}

std::uint32_t StepDraft::ChunkTokens(std::uint32_t computed, std::uint32_t total,
                                     std::uint32_t room) const {
  const std::uint32_t remaining = total - computed;
  std::uint32_t chunk = std::min({remaining, max_chunk_, room, budget_, prompt_budget_});
  if (time_target_ == absl::InfiniteDuration()) {
    if (chunk == remaining) return chunk;
    const std::uint32_t past_page = (computed + chunk) % page_size_;
    return chunk > past_page ? chunk - past_page : 0;
  }
  const absl::Duration left =
      time_target_ * policy_.planned_share_of_target - model_->Predict(plan_.work);
  const std::uint32_t min_chunk = plan_.prefills.empty() ? policy_.row_tile : 0;
  chunk = std::min(chunk, std::max(model_->PromptTokensWithin(left, computed), min_chunk));
  if (chunk == remaining || chunk <= min_chunk) return chunk;
  const std::uint32_t past_tile = (plan_.num_tokens + chunk) % policy_.row_tile;
  return std::max(chunk > past_tile ? chunk - past_tile : 0, min_chunk);
}

bool StepDraft::ForksAfter(const Sequence& sequence, std::uint32_t end) const {
  const ScheduledRequest& request = *sequence.request;
  return admission_ == AdmissionMode::kSafe && !request.forked && end >= sequence.total() &&
         request.choices() > 1;
}

std::uint32_t StepDraft::ForkPages(const Sequence& sequence, std::uint32_t end) const {
  if (!ForksAfter(sequence, end) || end % page_size_ == 0) return 0;
  return (sequence.request->choices() - 1) * cache_->num_groups();
}

std::uint32_t StepDraft::ForkSlots(const Sequence& sequence, std::uint32_t end) const {
  if (!ForksAfter(sequence, end)) return 0;
  return cache_->SlotsForForks(sequence.request->choices() - 1);
}

bool StepDraft::HasRoomToFork(const Sequence& sequence, std::uint32_t end) const {
  return fork_pages_ + ForkPages(sequence, end) <= cache_->available_pages() &&
         fork_slots_ + ForkSlots(sequence, end) <= cache_->available_state_slots();
}

absl::Status StepDraft::CheckIntegrity() const {
  std::uint32_t tokens = plan_.prompt_tokens();
  for (const PlannedRow& decode : plan_.decodes) tokens += decode.num_tokens;
  if (tokens != plan_.num_tokens) {
    return absl::InternalError(absl::StrCat("the rows of the plan have ", tokens,
                                            " tokens, the plan counts ", plan_.num_tokens));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
