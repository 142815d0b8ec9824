#pragma once

// Makes what the sampler needs of choices with a constraint, banned text or penalties for
// repetitions on threads of its own, one position ahead: while the device computes the logits of a
// position, a mask thread goes on by the token before it and fills the mask.
//
//   engine thread   Start                  | is_ready, mask | Advance(token)        | is_ready ...
//   mask thread           matcher, FillMask|                | Accept, FillMask      |
//
// Place:      between EngineCore, which has one ChoiceMask for each such choice, and the matchers,
//             which no other thread touches.
// Invariants: a choice is in the queue or with one thread exactly while it is not ready. What a
//             mask holds depends on the constraint, the end tokens and the tokens that were given
//             to Advance, never on when it was made. Choices share the threads by the time that
//             their masks take (fair queueing; the first is the one that would end first): one
//             whose masks take little waits for those that are being made, and not for all that
//             take long.
// Threads:    Start, Advance and the waits from the engine thread; owns `num_threads` threads.
// Lifetime:   a choice may be dropped at any time, and then costs a mask thread nothing any more;
//             choices outlive the pool when their owner keeps them.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "engine/constraint/constraint.h"
#include "engine/masks/mask_rules.h"

namespace quire::engine {

// The mask of the next token of one choice.
class ChoiceMask {
 public:
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }

  // What follows REQUIRES is_ready().
  //
  // Why there is no mask: an error of ConstraintMatcher, or INTERNAL for a token that an earlier
  // mask had excluded.
  const absl::Status& status() const { return status_; }
  // One bit a row of the output matrix; all bits 0 without a mask. Empty where nothing may be
  // excluded: without a constraint and banned text.
  const std::vector<std::uint32_t>& words() const { return words_; }
  // With penalties for repetitions: these and the biases of the request, in order of ids, of one id
  // the penalty first.
  bool has_bias() const { return rules_.repeats != nullptr; }
  const std::vector<kernels::LogitBias>& bias() const { return bias_; }
  // The constraint is met, and no token may follow: the choice has come to its end.
  bool is_finished() const { return status_.ok() && summary_.may_end && !summary_.may_continue; }

 private:
  friend class MaskPool;

  MaskRules rules_;
  std::unique_ptr<ConstraintMatcher> matcher_;  // of the constraint; made by the first mask thread
  std::int32_t banned_state_ = 0;               // BannedText::kStart
  std::shared_ptr<RepeatPenalty> repeats_;      // of its own; copied by the first mask thread
  std::vector<kernels::LogitBias> bias_;
  std::int32_t token_ = -1;      // to go on by; -1: none yet
  std::int64_t num_tokens_ = 0;  // given to Advance
  std::vector<std::uint32_t> words_;
  MaskSummary summary_;
  absl::Status status_;
  std::atomic<bool> ready_{false};
  // Its place in the queue, guarded by the lock of that. The turn grows by what the masks take, and
  // is at least that of the next one when it is queued: what it did not use while it asked for
  // nothing is not kept for it.
  absl::Duration turn_ = absl::ZeroDuration();
  absl::Duration took_ = absl::ZeroDuration();  // its last mask, as the next one is expected to
  std::uint64_t arrival_ = 0;                   // among those that are due at the same time
};

class MaskPool {
 public:
  // `on_made` is called by mask threads with the time that each mask took. The clock outlives the
  // pool. `used` says how long the calling thread has been working, so that a choice does not pay
  // for what else the machine does. REQUIRES: num_threads >= 1.
  MaskPool(std::int32_t num_threads, const Clock* clock,
           std::function<void(absl::Duration)> on_made,
           std::function<absl::Duration()> used = ThreadTime);
  // The time of a processor that the calling thread has used.
  static absl::Duration ThreadTime();
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  // A choice before its first token, whose mask is on its way. REQUIRES: !rules.empty().
  std::shared_ptr<ChoiceMask> Start(MaskRules rules);
  // The choice goes on by `token`. REQUIRES: it is ready, and its status is OK.
  void Advance(const std::shared_ptr<ChoiceMask>& choice, std::int32_t token);

  // Returns when all of `choices` are ready, or after `timeout`.
  void WaitAll(std::span<const ChoiceMask* const> choices, absl::Duration timeout);
  // Returns when one of `choices` is ready, or after `timeout`.
  void WaitAny(std::span<const ChoiceMask* const> choices, absl::Duration timeout);

  // Proves the queue, and the matchers of choices that are ready. REQUIRES: the engine thread.
  absl::Status CheckIntegrity(std::span<const ChoiceMask* const> choices) const;

 private:
  // The order in which choices wait.
  static bool IsDueLater(const std::shared_ptr<ChoiceMask>& a,
                         const std::shared_ptr<ChoiceMask>& b);
  void Work();
  static absl::Status Make(ChoiceMask& choice);
  static absl::Status Match(ChoiceMask& choice);
  static void PenaliseRepeats(ChoiceMask& choice);
  void Enqueue(std::shared_ptr<ChoiceMask> choice);

  const Clock* const clock_;
  const std::function<void(absl::Duration)> on_made_;
  const std::function<absl::Duration()> used_;
  mutable Mutex mutex_;
  CondVar queued_;
  CondVar made_;
  std::vector<std::shared_ptr<ChoiceMask>> queue_ ABSL_GUARDED_BY(mutex_);  // a heap
  absl::Duration turn_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();      // the last one taken
  std::uint64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
