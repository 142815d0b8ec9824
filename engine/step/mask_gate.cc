#include "engine/step/mask_gate.h"

#include <algorithm>

#include "base/check.h"

namespace quire::engine {
namespace {

// A late mask may delay the other rows of a step by this fraction of the step's expected time, or
// by kMinWait if that is longer.
constexpr double kMaxDelayFraction = 0.05;
constexpr absl::Duration kMinWait = absl::Microseconds(200);
// Mask computation may continue until this fraction of the step's expected time has passed since
// the launch of the step.
constexpr double kStepFraction = 0.8;
// Maximum wait if the step has no other rows, or if nothing else can run.
constexpr absl::Duration kMaxWait = absl::Milliseconds(20);

// REQUIRES: the mask is ready.
bool IsComplete(const Sequence& sequence) {
  return sequence.mask->is_finished() && sequence.output_tokens() > 0;
}

// Returns whether the choice can be sampled now. Before the fork all choices of the request are
// sampled together. A choice whose constraint is complete or whose mask failed is not sampled. The
// next FindEndingChoices returns it as a choice to end.
bool CanSample(const Sequence& sequence) {
  const auto has_mask = [](const Sequence& choice) {
    return choice.mask->is_ready() && choice.mask->status().ok() && !IsComplete(choice);
  };
  const ScheduledRequest& live = *sequence.request;
  if (live.forked) return has_mask(sequence);
  return std::ranges::all_of(live.sequences, [&](const auto& choice) { return has_mask(*choice); });
}

}  // namespace

MaskGate::MaskGate(std::int32_t num_threads, bool has_states, const Clock* clock,
                   EngineProbe* probe)
    : has_states_(has_states),
      clock_(clock),
      probe_(probe),
      masks_(num_threads, clock, [probe](absl::Duration time) { probe->steps.MaskMade(time); }) {}

void MaskGate::Start(ScheduledRequest& live) {
  if (live.prompt.mask_rules.empty()) return;
  ++num_masked_;
  for (const auto& choice : live.sequences) choice->mask = masks_.Start(live.prompt.mask_rules);
}

void MaskGate::Drop(const ScheduledRequest& live) {
  if (live.sequences.front()->mask != nullptr) --num_masked_;
}

void MaskGate::AddAwaited(const Sequence& sequence) {
  const auto add = [this](const Sequence& choice) {
    if (choice.mask != nullptr && !choice.mask->is_ready())
      awaited_masks_.push_back(choice.mask.get());
  };
  const ScheduledRequest& live = *sequence.request;
  if (live.forked) return add(sequence);
  for (const auto& choice : live.sequences) add(*choice);
}

void MaskGate::AwaitNextSamples(std::span<Sequence* const> running, absl::Duration expected) {
  if (!has_states_ || num_masked_ == 0) return;
  awaited_masks_.clear();
  for (const Sequence* sequence : running) {
    const bool is_next = sequence->active() && sequence->launched() + 1 == sequence->total();
    if (is_next && !sequence->awaits_mask) AddAwaited(*sequence);
  }
  if (awaited_masks_.empty()) return;
  // The timeout is clamped, because the last step may have computed a long prompt.
  masks_.WaitAll(awaited_masks_, std::clamp(expected * kMaxDelayFraction, kMinWait, kMaxWait));
}

void MaskGate::HoldRows(std::span<Sequence* const> running, std::span<Sequence* const> preempted) {
  if (!has_states_ || num_masked_ == 0) return;
  const auto hold = [](Sequence* sequence) {
    if (sequence->mask != nullptr) sequence->holds_last_token = !CanSample(*sequence);
  };
  std::ranges::for_each(preempted, hold);
  for (Sequence* sequence : running) {
    if (!sequence->active()) continue;
    hold(sequence);
    const bool is_next = sequence->launched() + 1 == sequence->total();
    if (!is_next || !sequence->holds_last_token || sequence->awaits_mask) continue;
    sequence->awaits_mask = true;
    probe_->steps.MaskLate();
  }
}

void MaskGate::AwaitLateSamples(const InFlightStep& step) {
  awaited_masks_.clear();
  bool has_others = false;
  std::size_t sampled_rows = 0;
  const std::vector<runtime::StepSample>& samples = step.batch.samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Sequence& sequence = *step.sample_owners[i];
    const bool waits = samples[i].is_late && !sequence.finished() && !sequence.mask->is_ready();
    if (waits) awaited_masks_.push_back(sequence.mask.get());
    has_others |= !waits && !sequence.finished();
    const bool is_next_row = i == 0 || samples[i].logits_index != samples[i - 1].logits_index;
    sampled_rows += is_next_row ? 1 : 0;
  }
  has_others |= step.batch.rows.size() > sampled_rows;  // prompts that do not sample in this step
  if (awaited_masks_.empty()) return;
  absl::Duration timeout = kMaxWait;
  if (has_others) {
    timeout = std::max({kMinWait, step.expected * kMaxDelayFraction,
                        step.expected * kStepFraction - (clock_->Now() - step.launched)});
  }
  masks_.WaitAll(awaited_masks_, timeout);
}

void MaskGate::CompleteLateSamples(const BatchBuilder& builder, InFlightStep* step) {
  for (std::size_t i = 0; i < step->batch.samples.size(); ++i) {
    if (!step->batch.samples[i].is_late) continue;
    Sequence& sequence = *step->sample_owners[i];
    if (sequence.finished()) continue;
    if (CanSample(sequence)) {
      builder.CompleteSample(step, i);
      continue;
    }
    QUIRE_CHECK(!has_states_);  // HoldRows stalls these rows before the step.
    Sequence& computed = sequence.request->forked ? sequence : sequence.request->first();
    if (!computed.awaits_mask) probe_->steps.MaskLate();
    computed.awaits_mask = true;
  }
}

std::span<Sequence* const> MaskGate::FindEndingChoices(std::span<Sequence* const> running,
                                                       std::span<Sequence* const> preempted) {
  ending_choices_.clear();
  if (num_masked_ == 0) return ending_choices_;
  const auto check = [&](Sequence* sequence) {
    if (sequence->mask == nullptr || !sequence->mask->is_ready()) return;
    if (!sequence->mask->status().ok() || IsComplete(*sequence)) {
      ending_choices_.push_back(sequence);
    } else if (sequence->awaits_mask && sequence->in_flight == 0 && CanSample(*sequence)) {
      sequence->awaits_mask = false;
    }
  };
  std::ranges::for_each(running, check);
  std::ranges::for_each(preempted, check);
  return ending_choices_;
}

bool MaskGate::AwaitAny(std::span<Sequence* const> running, std::span<Sequence* const> preempted) {
  awaited_masks_.clear();
  bool is_any_stalled = false;
  const auto add = [&](const Sequence* sequence) {
    if (!sequence->awaits_mask) return;
    is_any_stalled = true;
    AddAwaited(*sequence);
  };
  std::ranges::for_each(running, add);
  std::ranges::for_each(preempted, add);
  if (!awaited_masks_.empty()) masks_.WaitAny(awaited_masks_, kMaxWait);
  return is_any_stalled;
}

absl::Status MaskGate::CheckIntegrity(std::span<const ScheduledRequest* const> live) const {
  std::vector<const ChoiceMask*> masks;
  std::int32_t masked = 0;
  for (const ScheduledRequest* request : live) {
    const bool has_masks = !request->prompt.mask_rules.empty() && request->was_scheduled;
    masked += has_masks ? 1 : 0;
    for (const auto& choice : request->sequences) {
      if ((choice->mask != nullptr) != has_masks) {
        return absl::InternalError(
            "a choice must have a mask exactly if its request has mask rules and has started");
      }
      if (choice->awaits_mask && choice->mask == nullptr) {
        return absl::InternalError("a choice that has no mask awaits a mask");
      }
      if (has_masks) masks.push_back(choice->mask.get());
    }
  }
  if (masked != num_masked_) {
    return absl::InternalError("the number of requests with masks is wrong");
  }
  return masks_.CheckIntegrity(masks);
}

}  // namespace quire::engine
