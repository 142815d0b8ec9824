#include "engine/admission_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"

namespace quire::engine {

void RateMeter::Advance(std::int64_t second) const {
  if (second <= second_) return;
  const std::int64_t steps = std::min<std::int64_t>(second - second_, kWindowSeconds);
  for (std::int64_t i = 0; i < steps; ++i) counts_[(second - i) % kWindowSeconds] = 0;
  second_ = second;
}

void RateMeter::Add(absl::Time now, std::int64_t count) {
  const std::int64_t second = absl::ToUnixSeconds(now);
  Advance(second);
  start_ = std::min(start_, now);
  counts_[second_ % kWindowSeconds] += count;
}

double RateMeter::PerSecond(absl::Time now) const {
  Advance(absl::ToUnixSeconds(now));
  std::int64_t sum = 0;
  for (const std::int64_t count : counts_) sum += count;
  if (sum == 0) return 0;
  const double seconds =
      std::clamp(absl::ToDoubleSeconds(now - start_), 1.0, static_cast<double>(kWindowSeconds));
  return static_cast<double>(sum) / seconds;
}

absl::Status AdmissionQueue::Full(absl::string_view what, std::int64_t limit) const {
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("queue is full: ", requests_, " requests with ", tokens_,
                                     " tokens wait, at most ", limit, " ", what, " may")),
                    "QUEUE_FULL",
                    {{"queued_requests", absl::StrCat(requests_)},
                     {"queued_tokens", absl::StrCat(tokens_)},
                     {"limit", absl::StrCat(limit)}},
                    RetryDelayLocked());
}

absl::Status AdmissionQueue::EnterRequest() {
  MutexLock lock(&mutex_);
  if (requests_ >= max_requests_) return Full("requests", max_requests_);
  ++requests_;
  return absl::OkStatus();
}

absl::Status AdmissionQueue::AddTokens(std::int64_t tokens) {
  MutexLock lock(&mutex_);
  if (tokens_ + tokens > max_tokens_) return Full("tokens", max_tokens_);
  tokens_ += tokens;
  return absl::OkStatus();
}

void AdmissionQueue::LeaveRequest() {
  MutexLock lock(&mutex_);
  --requests_;
  QUIRE_CHECK(requests_ >= 0);
}

void AdmissionQueue::RemoveTokens(std::int64_t tokens) {
  MutexLock lock(&mutex_);
  tokens_ -= tokens;
  QUIRE_CHECK(tokens_ >= 0);
}

void AdmissionQueue::Update(std::int64_t uncached_tokens, double tokens_per_second) {
  MutexLock lock(&mutex_);
  uncached_tokens_ = uncached_tokens;
  rate_ = tokens_per_second;
}

absl::Duration AdmissionQueue::RetryDelayLocked() const {
  if (rate_ <= 0) return absl::Seconds(RateMeter::kWindowSeconds);
  return absl::Seconds(static_cast<double>(uncached_tokens_) / rate_);
}

absl::Duration AdmissionQueue::RetryDelay() const {
  MutexLock lock(&mutex_);
  return RetryDelayLocked();
}

std::int32_t AdmissionQueue::queued_requests() const {
  MutexLock lock(&mutex_);
  return requests_;
}

std::int64_t AdmissionQueue::queued_tokens() const {
  MutexLock lock(&mutex_);
  return tokens_;
}

absl::Status AdmissionQueue::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  if (requests_ < 0 || requests_ > max_requests_ || tokens_ < 0 || tokens_ > max_tokens_) {
    return absl::InternalError(absl::StrCat("admission queue counts ", requests_, " requests and ",
                                            tokens_, " tokens, limits are ", max_requests_, " and ",
                                            max_tokens_));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
