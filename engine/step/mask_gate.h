#pragma once

// Starts the token masks of choices with a constraint, banned text or repetition penalties, and
// waits for them before a step samples. Stalls rows whose mask is late.
//
// The threads of MaskPool compute the masks while the device computes the logits of the same step.
// A row whose mask is late is not sampled. It is left out of steps until the mask is ready, and
// then computes its last token again.
//
// A model with recurrent states cannot compute a token again, because its states already include
// that token. Rows of such a model wait for their masks before they compute the last token, whose
// logits are sampled.
//
// Place:      between StepPipeline and MaskPool. Ends no request itself.
// Invariants: see CheckIntegrity(). A choice has a mask if and only if its request has MaskRules
//             and has started.
// Threads:    engine thread only; MaskPool has separate threads.
// Lifetime:   clock and probe outlive it.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/masks/mask_pool.h"
#include "engine/request/engine_probe.h"
#include "engine/scheduler/scheduled_request.h"
#include "engine/scheduler/sequence.h"
#include "engine/step/batch_builder.h"
#include "engine/step/in_flight_step.h"

namespace quire::engine {

class MaskGate {
 public:
  // `has_states`: the model has recurrent states.
  MaskGate(std::int32_t num_threads, bool has_states, const Clock* clock, EngineProbe* probe);

  // Starts the first masks of the choices of a request, if it has rules.
  void Start(ScheduledRequest& live);
  // Appends `token` to the choice, which queues its next mask. Does nothing without a mask.
  void Advance(const Sequence& sequence, std::int32_t token) {
    if (sequence.mask != nullptr) masks_.Advance(sequence.mask, token);
  }
  // Called when the request has ended. Updates the number of requests that have masks.
  void Drop(const ScheduledRequest& live);

  // The two functions below do nothing if the model has no recurrent states.
  //
  // Waits for the masks of rows that the next step samples. `expected` is the expected duration of
  // the step launched last. The timeout is 5 % of `expected`, at least 0.2 ms, at most 20 ms.
  void AwaitNextSamples(std::span<Sequence* const> running, absl::Duration expected);
  // Stalls the rows that would sample without a mask. REQUIRES: FindEndingChoices has run.
  void HoldRows(std::span<Sequence* const> running, std::span<Sequence* const> preempted);

  // Waits for the masks of late samples (StepSample::is_late). If the step has other rows, the wait
  // is limited so that it hardly delays them.
  void AwaitLateSamples(const InFlightStep& step);
  // Completes the late samples whose masks are ready. Stalls the rows of the other late samples.
  void CompleteLateSamples(const BatchBuilder& builder, InFlightStep* step);

  // Returns the choices that must end because their constraint is complete or because their mask
  // failed (ChoiceMask::status). Also resumes stalled rows whose masks are ready. The result is
  // valid until the next call.
  std::span<Sequence* const> FindEndingChoices(std::span<Sequence* const> running,
                                               std::span<Sequence* const> preempted);
  // Waits a limited time until the mask of a stalled row is ready. Returns false if no row is
  // stalled by its mask.
  bool AwaitAny(std::span<Sequence* const> running, std::span<Sequence* const> preempted);

  // `live`: every live request.
  absl::Status CheckIntegrity(std::span<const ScheduledRequest* const> live) const;

 private:
  // Adds to awaited_masks_ the masks that are needed to sample the sequence and are not ready.
  // Before the fork, all choices of the request are sampled together, so all their masks are added.
  void AddAwaited(const Sequence& sequence);

  const bool has_states_;
  const Clock* const clock_;
  EngineProbe* const probe_;
  MaskPool masks_;
  std::int32_t num_masked_ = 0;  // live requests that have masks
  std::vector<Sequence*> ending_choices_;
  std::vector<const ChoiceMask*> awaited_masks_;
};

}  // namespace quire::engine
