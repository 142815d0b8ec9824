#pragma once

// Computes the masks and logit biases of choices that have a constraint, banned text or repetition
// penalties. Its threads work one position ahead: while the device computes the logits of a
// position, a mask thread advances the matcher by the previous token and fills the mask.
//
//   engine thread   Start                  | is_ready, mask | Advance(token)        | is_ready ...
//   mask thread           matcher, FillMask|                | Accept, FillMask      |
//
// Place:      between EngineCore, which has one ChoiceMask for each such choice, and the matchers,
//             which only the mask threads use.
// Invariants: a choice is in the queue or in use by one mask thread if and only if it is not ready.
//             A mask depends only on the constraint, the end tokens and the tokens passed to
//             Advance, never on timing. Choices are scheduled by fair queueing. Each choice is
//             charged the time that its masks take, and the choice with the earliest expected
//             finish time runs first. A choice with cheap masks therefore waits only for masks in
//             progress.
// Threads:    the engine thread calls Start, Advance, WaitAll and WaitAny. Owns `num_threads`
//             threads.
// Lifetime:   a choice may be dropped at any time, and its queued mask is then skipped. Choices may
//             outlive the pool.

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

  // The following methods require is_ready().
  //
  // Returns OK if there is a mask. Otherwise returns an error of ConstraintMatcher, or INTERNAL if
  // the matcher rejected a token that its mask had allowed.
  const absl::Status& status() const { return status_; }
  // One bit for each token id, set if the token is allowed; all bits are 0 if status() is an error.
  // Empty if the choice has neither a constraint nor banned text.
  const std::vector<std::uint32_t>& words() const { return words_; }
  // Returns whether the request has repetition penalties.
  bool has_repeat_penalty() const { return rules_.repeat_penalty != nullptr; }
  // Returns the repetition penalties of the next token and the biases of the request, ordered by
  // token id. If an id has a penalty and a bias, the penalty comes first. Empty without repetition
  // penalties.
  const std::vector<kernels::LogitBias>& bias() const { return bias_; }
  // Returns whether the constraint is complete and allows no further token, so that the choice must
  // end.
  bool is_finished() const { return status_.ok() && summary_.may_end && !summary_.may_continue; }

 private:
  friend class MaskPool;

  MaskRules rules_;
  // The matcher of the constraint; null until the first mask is computed.
  std::unique_ptr<ConstraintMatcher> matcher_;
  std::int32_t banned_state_ = 0;                  // BannedText::kStart
  std::shared_ptr<RepeatPenalty> repeat_penalty_;  // null until the first mask is computed
  std::vector<kernels::LogitBias> bias_;
  std::int32_t token_ = -1;      // the token to advance by; -1 if there is none yet
  std::int64_t num_tokens_ = 0;  // number of tokens passed to Advance
  std::vector<std::uint32_t> words_;
  MaskSummary summary_;
  absl::Status status_;
  std::atomic<bool> ready_{false};
  // The fair-queueing state of the choice, guarded by the mutex of the pool. `virtual_start_` grows
  // by the time that the masks take. When a choice is queued, its virtual start is raised to that
  // of the first choice in the queue, or to virtual_time_ if the queue is empty. Idle time thus
  // gives no advantage.
  absl::Duration virtual_start_ = absl::ZeroDuration();
  // The time that the last mask took, used as the estimate for the next one.
  absl::Duration last_cost_ = absl::ZeroDuration();
  std::uint64_t arrival_ = 0;  // orders choices that are due at the same time
};

class MaskPool {
 public:
  // Mask threads call `on_computed` with the wall time of each mask. The clock outlives the pool.
  // `thread_time` returns the processor time of the calling thread, so that a choice is not charged
  // for other work of the machine. REQUIRES: num_threads >= 1.
  MaskPool(std::int32_t num_threads, const Clock* clock,
           std::function<void(absl::Duration)> on_computed,
           std::function<absl::Duration()> thread_time = ThreadTime);
  // Returns the processor time that the calling thread has used.
  static absl::Duration ThreadTime();
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  // Creates a choice without tokens and queues its first mask. REQUIRES: !rules.empty().
  std::shared_ptr<ChoiceMask> Start(MaskRules rules);
  // Appends `token` to the choice and queues its next mask. REQUIRES: the choice is ready, and its
  // status is OK.
  void Advance(const std::shared_ptr<ChoiceMask>& choice, std::int32_t token);

  // Returns when all of `choices` are ready, or after `timeout`.
  void WaitAll(std::span<const ChoiceMask* const> choices, absl::Duration timeout);
  // Returns when one of `choices` is ready, or after `timeout`.
  void WaitAny(std::span<const ChoiceMask* const> choices, absl::Duration timeout);

  // Checks the queue, and the matchers of choices that are ready. Called on the engine thread.
  absl::Status CheckIntegrity(std::span<const ChoiceMask* const> choices) const;

 private:
  // Orders the queue: true if the expected finish time of `a` is later than that of `b`.
  static bool IsDueLater(const std::shared_ptr<ChoiceMask>& a,
                         const std::shared_ptr<ChoiceMask>& b);
  void Work();
  static absl::Status ComputeMask(ChoiceMask& choice);
  static absl::Status Match(ChoiceMask& choice);
  static void PenalizeRepeats(ChoiceMask& choice);
  void Enqueue(std::shared_ptr<ChoiceMask> choice);

  const Clock* const clock_;
  const std::function<void(absl::Duration)> on_computed_;
  const std::function<absl::Duration()> thread_time_;
  mutable Mutex mutex_;
  CondVar mask_queued_;
  CondVar mask_computed_;
  std::vector<std::shared_ptr<ChoiceMask>> queue_ ABSL_GUARDED_BY(mutex_);  // a heap
  // The virtual start of the choice that was last taken from the queue.
  absl::Duration virtual_time_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::uint64_t arrivals_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::engine
