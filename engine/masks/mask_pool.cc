#include "engine/masks/mask_pool.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/thread_name.h"
#include "engine/masks/banned_text.h"
#include "engine/masks/repeat_penalty.h"

namespace quire::engine {

MaskPool::MaskPool(std::int32_t num_threads, const Clock* clock,
                   std::function<void(absl::Duration)> on_computed,
                   std::function<absl::Duration()> thread_time)
    : clock_(clock), on_computed_(std::move(on_computed)), thread_time_(std::move(thread_time)) {
  QUIRE_CHECK(num_threads >= 1);
  for (std::int32_t i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

absl::Duration MaskPool::ThreadTime() {
  timespec used = {};
  QUIRE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
  return absl::DurationFromTimespec(used);
}

MaskPool::~MaskPool() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    queue_.clear();
  }
  mask_queued_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<ChoiceMask> MaskPool::Start(MaskRules rules) {
  auto choice = std::make_shared<ChoiceMask>();
  if (rules.excludes_tokens()) {
    choice->words_.resize(MaskWords(rules.constraint != nullptr ? rules.constraint->vocab_size()
                                                                : rules.banned->vocab_size()));
  }
  choice->rules_ = std::move(rules);
  Enqueue(choice);
  return choice;
}

void MaskPool::Advance(const std::shared_ptr<ChoiceMask>& choice, std::int32_t token) {
  QUIRE_CHECK(choice->is_ready() && choice->status_.ok());
  choice->token_ = token;
  ++choice->num_tokens_;
  choice->ready_.store(false, std::memory_order_relaxed);
  Enqueue(choice);
}

bool MaskPool::IsDueLater(const std::shared_ptr<ChoiceMask>& a,
                          const std::shared_ptr<ChoiceMask>& b) {
  const absl::Duration due_a = a->virtual_start_ + a->last_cost_,
                       due_b = b->virtual_start_ + b->last_cost_;
  return due_a != due_b ? due_a > due_b : a->arrival_ > b->arrival_;
}

void MaskPool::Enqueue(std::shared_ptr<ChoiceMask> choice) {
  {
    MutexLock lock(&mutex_);
    choice->virtual_start_ = std::max(
        choice->virtual_start_, queue_.empty() ? virtual_time_ : queue_.front()->virtual_start_);
    choice->arrival_ = arrivals_++;
    queue_.push_back(std::move(choice));
    std::ranges::push_heap(queue_, IsDueLater);
  }
  mask_queued_.NotifyOne();
}

void MaskPool::Work() {
  SetThreadName("mask");
  while (true) {
    std::shared_ptr<ChoiceMask> choice;
    {
      MutexLock lock(&mutex_);
      while (queue_.empty() && !is_stopping_) mask_queued_.Wait(&mutex_);
      if (is_stopping_) return;
      std::ranges::pop_heap(queue_, IsDueLater);
      choice = std::move(queue_.back());
      queue_.pop_back();
      virtual_time_ = choice->virtual_start_;
    }
    if (choice.use_count() == 1) continue;  // the request has ended
    const absl::Time start = clock_->Now();
    const absl::Duration used = thread_time_();
    choice->status_ = ComputeMask(*choice);
    // Without a mask no token is allowed, and status() has the error.
    if (!choice->status_.ok()) std::ranges::fill(choice->words_, 0u);
    if (on_computed_) on_computed_(clock_->Now() - start);
    const absl::Duration took = thread_time_() - used;
    {
      MutexLock lock(&mutex_);
      choice->virtual_start_ += took;
      choice->last_cost_ = took;
      choice->ready_.store(true, std::memory_order_release);
    }
    mask_computed_.NotifyAll();
  }
}

// Handles the constraint. Without one, all tokens of the vocabulary are allowed.
absl::Status MaskPool::Match(ChoiceMask& choice) {
  if (choice.rules_.constraint == nullptr) {
    std::ranges::fill(choice.words_, ~0u);
    choice.summary_ = {.may_end = true, .may_continue = true};
    return absl::OkStatus();
  }
  if (choice.matcher_ == nullptr) {
    choice.matcher_ = choice.rules_.constraint->NewMatcher(choice.rules_.end_tokens);
  } else {
    const absl::Status accepted = choice.matcher_->Accept(choice.token_);
    // The token was sampled with the mask, so the request did not cause the error.
    if (absl::IsInvalidArgument(accepted)) {
      return absl::InternalError(absl::StrCat("a constraint allowed token ", choice.token_,
                                              " and then rejected it: ", accepted.message()));
    }
    if (!accepted.ok()) return accepted;
  }
  absl::StatusOr<MaskSummary> summary = choice.matcher_->FillMask(choice.words_);
  if (summary.ok()) choice.summary_ = *summary;
  return summary.status();
}

void MaskPool::PenalizeRepeats(ChoiceMask& choice) {
  const MaskRules& rules = choice.rules_;
  if (rules.repeat_penalty == nullptr) return;
  if (choice.repeat_penalty_ == nullptr) {
    choice.repeat_penalty_ = std::make_shared<RepeatPenalty>(*rules.repeat_penalty);
  } else {
    choice.repeat_penalty_->Append(choice.token_);
  }
  const std::span<const kernels::LogitBias> penalties = choice.repeat_penalty_->Penalties();
  choice.bias_.resize(penalties.size() + rules.bias.size());
  std::ranges::merge(penalties, rules.bias, choice.bias_.begin(), {}, &kernels::LogitBias::token,
                     &kernels::LogitBias::token);
}

absl::Status MaskPool::ComputeMask(ChoiceMask& choice) {
  if (absl::Status status = Match(choice); !status.ok()) return status;
  if (const BannedText* const banned = choice.rules_.banned.get(); banned != nullptr) {
    if (choice.token_ >= 0) {
      choice.banned_state_ = banned->Next(choice.banned_state_, choice.token_);
    }
    banned->Exclude(choice.banned_state_, choice.words_);
  }
  if (choice.rules_.allowed != nullptr) {
    const std::vector<std::uint32_t>& allowed = *choice.rules_.allowed;
    for (std::size_t i = 0; i < choice.words_.size(); ++i) choice.words_[i] &= allowed[i];
  }
  PenalizeRepeats(choice);
  return absl::OkStatus();
}

void MaskPool::WaitAll(std::span<const ChoiceMask* const> choices, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(&mutex_);
  for (const ChoiceMask* choice : choices) {
    while (!choice->is_ready() && MonotonicNow() < deadline)
      mask_computed_.WaitUntil(&mutex_, deadline);
  }
}

void MaskPool::WaitAny(std::span<const ChoiceMask* const> choices, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  const auto is_ready = [](const ChoiceMask* choice) { return choice->is_ready(); };
  MutexLock lock(&mutex_);
  while (std::ranges::none_of(choices, is_ready) && MonotonicNow() < deadline) {
    mask_computed_.WaitUntil(&mutex_, deadline);
  }
}

absl::Status MaskPool::CheckIntegrity(std::span<const ChoiceMask* const> choices) const {
  MutexLock lock(&mutex_);
  for (const auto& queued : queue_) {
    if (queued->is_ready()) return absl::InternalError("a choice in the queue is already ready");
  }
  if (!std::ranges::is_heap(queue_, IsDueLater)) {
    return absl::InternalError("the queue of masks is out of order");
  }
  for (const ChoiceMask* choice : choices) {
    if (!choice->is_ready() || !choice->status_.ok()) continue;
    if (choice->repeat_penalty_ != nullptr) {
      if (absl::Status status = choice->repeat_penalty_->CheckIntegrity(); !status.ok())
        return status;
    }
    if (choice->matcher_ == nullptr) continue;
    if (choice->matcher_->num_accepted() != choice->num_tokens_) {
      return absl::InternalError(
          absl::StrCat("a matcher accepted ", choice->matcher_->num_accepted(),
                       " tokens, it must have accepted ", choice->num_tokens_));
    }
    const absl::Status status = choice->matcher_->CheckIntegrity();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
