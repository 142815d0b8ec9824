// What choices with masks ask of the steps: masks are started, waited for, and looked at.

#include <algorithm>

#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/masks/mask_pool.h"
#include "engine/scheduler/scheduler.h"
#include "engine/step/engine_core.h"

namespace quire::engine {
namespace {

// A late mask may hold up the others' step for so much of what it is expected to take, or so long.
constexpr double kPatienceShare = 0.05;
constexpr absl::Duration kMinPatience = absl::Microseconds(200);
// From its launch on a step on a device leaves the masks so much of its time.
constexpr double kStepShare = 0.8;
// Where there are no others, and where nothing else can run.
constexpr absl::Duration kLonePatience = absl::Milliseconds(20);

// Of a mask that is ready: nothing more is sampled, the choice ends with what it has.
bool EndsChoice(const Sequence& sequence) {
  return sequence.mask->is_finished() && sequence.output_tokens() > 0;
}

// Whether the sample of the choice may be made: before the fork all choices are sampled together.
// What a mask ends that has come since HandleMasks looked is left to it.
bool MayBeSampled(const Sequence& sequence) {
  const auto has_mask = [](const Sequence& choice) {
    return choice.mask->is_ready() && choice.mask->status().ok() && !EndsChoice(choice);
  };
  const ScheduledRequest& live = *sequence.request;
  if (live.forked) return has_mask(sequence);
  return std::ranges::all_of(live.sequences, [&](const auto& choice) { return has_mask(*choice); });
}

}  // namespace

void EngineCore::StartMasks(ScheduledRequest& live) {
  if (live.prompt.mask_rules.empty()) return;
  ++num_masked_;
  for (const auto& choice : live.sequences) choice->mask = masks_.Start(live.prompt.mask_rules);
}

// Of the samples of a step that has been launched, those whose masks are in time are made; the rows
// of the others are stalled, and computed again once the mask is there.
void EngineCore::FinishSampling() {
  if (!has_late_samples_) return;
  has_late_samples_ = false;
  QUIRE_CHECK(num_in_flight_ == 1);
  InFlightStep& step = flight(0);
  WaitForMasks(step);
  HandleMasks(clock_->Now());
  for (std::size_t i = 0; i < step.batch.samples.size(); ++i) {
    if (!step.batch.samples[i].is_late) continue;
    Sequence& sequence = *step.sample_owners[i].sequence;
    if (sequence.finished()) continue;
    if (MayBeSampled(sequence)) {
      builder_.CompleteSample(&step, i);
      continue;
    }
    Sequence& computed = sequence.request->forked ? sequence : sequence.request->first();
    if (!computed.awaits_mask) probe_->MaskLate();
    computed.awaits_mask = true;
  }
  runner_->SampleLate(step.batch);
}

// Long enough for masks that are nearly there, and no longer than the other rows can spare.
void EngineCore::WaitForMasks(const InFlightStep& step) {
  awaited_.clear();
  bool has_others = false;
  std::size_t sampled_rows = 0;
  const std::vector<runtime::StepSample>& samples = step.batch.samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sequence& sequence = *step.sample_owners[i].sequence;
    const bool waits = samples[i].is_late && !sequence.finished() && !sequence.mask->is_ready();
    if (waits) awaited_.push_back(sequence.mask.get());
    has_others |= !waits && !sequence.finished();
    const bool is_next_row = i == 0 || samples[i].logits_index != samples[i - 1].logits_index;
    sampled_rows += is_next_row ? 1 : 0;
  }
  has_others |= step.batch.rows.size() > sampled_rows;  // prompts that do not sample yet, or never
  if (awaited_.empty()) return;
  absl::Duration patience = kLonePatience;
  if (has_others) {
    patience = std::max({kMinPatience, step.expected * kPatienceShare,
                         step.expected * kStepShare - (clock_->Now() - step.launched)});
  }
  masks_.WaitAll(awaited_, patience);
}

// Ends choices that have come to the end of their constraint and requests whose masks cannot be
// made, and lets stalled rows take part again. True when something has ended.
bool EngineCore::HandleMasks(absl::Time now) {
  if (num_masked_ == 0) return false;
  bool has_ended = false;
  looked_at_.clear();
  const auto look_at = [&](Sequence* sequence) {
    if (sequence->mask != nullptr && sequence->mask->is_ready()) looked_at_.push_back(sequence);
  };
  std::ranges::for_each(scheduler_.running(), look_at);
  std::ranges::for_each(scheduler_.preempted(), look_at);
  for (Sequence* sequence : looked_at_) {
    if (sequence->finished()) continue;  // with its request
    const ChoiceMask& mask = *sequence->mask;
    if (!mask.status().ok()) {
      const bool is_own = !absl::IsInternal(mask.status());
      Fail(*sequence->request, is_own ? mask.status() : InternalError(mask.status().message()),
           /*invalidate=*/false, now);
      has_ended = true;
    } else if (EndsChoice(*sequence)) {
      OutputItem& item = Emit(OutputItem::Kind::kChoiceEnd, *sequence->request, now);
      item.finish = FinishReason::kConstraintDone;
      FillEnd(*sequence, &item);
      FinishChoice(*sequence, now);
      has_ended = true;
    } else if (sequence->awaits_mask && sequence->in_flight == 0 && MayBeSampled(*sequence)) {
      sequence->awaits_mask = false;
    }
  }
  if (has_ended) ShowWork(now);
  return has_ended;
}

// With nothing to run but rows that await their masks. False when there are none.
bool EngineCore::AwaitMasks() {
  awaited_.clear();
  bool is_any_stalled = false;
  const auto add = [&](const Sequence* sequence) {
    if (!sequence->awaits_mask) return;
    is_any_stalled = true;
    for (const auto& choice : sequence->request->sequences) {
      if (choice->mask != nullptr && !choice->mask->is_ready()) {
        awaited_.push_back(choice->mask.get());
      }
    }
  };
  std::ranges::for_each(scheduler_.running(), add);
  std::ranges::for_each(scheduler_.preempted(), add);
  if (!is_any_stalled) return false;
  if (!awaited_.empty()) masks_.WaitAny(awaited_, kLonePatience);
  heartbeat_.Beat();
  return true;
}

// Masks are there exactly for the choices of requests with rules that have started.
absl::Status EngineCore::CheckMasks() const {
  if (has_late_samples_ && num_in_flight_ == 0) {
    return absl::InternalError("samples wait for masks although no step is in flight");
  }
  std::vector<const ChoiceMask*> masks;
  std::int32_t masked = 0;
  for (const auto& [arrival, live] : live_) {
    const bool has_masks = !live->prompt.mask_rules.empty() && live->was_scheduled;
    masked += has_masks ? 1 : 0;
    for (const auto& choice : live->sequences) {
      if ((choice->mask != nullptr) != has_masks) {
        return absl::InternalError("a choice has a mask without rules, or lacks one");
      }
      if (choice->awaits_mask && choice->mask == nullptr) {
        return absl::InternalError("a choice without a mask awaits one");
      }
      if (has_masks) masks.push_back(choice->mask.get());
    }
  }
  if (masked != num_masked_) {
    return absl::InternalError("requests with masks are miscounted");
  }
  return masks_.CheckIntegrity(masks);
}

}  // namespace quire::engine
