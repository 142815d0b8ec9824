#include "engine/request/admission_limiter.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/status.h"

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

absl::Status AdmissionLimiter::FullError(absl::string_view what, std::int64_t limit,
                                         std::int32_t unread) const {
  const std::string answers =
      unread > 0 ? absl::StrCat(" and ", unread, " unread finished answers") : "";
  return WithReason(absl::ResourceExhaustedError(
                        absl::StrCat("the queue is full: ", requests_, " requests with ", tokens_,
                                     " tokens", answers, " wait, the limit is ", limit, " ", what)),
                    Reason::kQueueFull,
                    {{"queued_requests", absl::StrCat(requests_)},
                     {"queued_tokens", absl::StrCat(tokens_)},
                     {"unread_answers", absl::StrCat(unread)},
                     {"limit", absl::StrCat(limit)}},
                    RetryDelayLocked());
}

void AdmissionLimiter::SetLimits(std::int32_t max_requests, std::int64_t max_tokens,
                                 const TenantOptions& tenants) {
  MutexLock lock(&mutex_);
  max_requests_ = max_requests;
  max_tokens_ = max_tokens;
  highest_requests_ = std::max(highest_requests_, max_requests);
  highest_tokens_ = std::max(highest_tokens_, max_tokens);
  tenants_ = tenants;
}

absl::Status AdmissionLimiter::TenantFullError(const std::string& tenant, absl::string_view what,
                                               absl::string_view key, std::int64_t value,
                                               std::int64_t limit) const {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("tenant \"", tenant, "\" has ", value,
                                                              " ", what, ", the limit is ", limit)),
                    Reason::kTenantLimit,
                    {{"tenant", tenant},
                     {"limit", absl::StrCat(limit)},
                     {"value", absl::StrCat(value)},
                     {"key", std::string(key)}},
                    RetryDelayLocked());
}

absl::Status AdmissionLimiter::CheckTenantRequests(const std::string& tenant,
                                                   std::int32_t unread) const {
  const std::optional<std::int32_t> limit = tenants_.LimitsOf(tenant).max_queued_requests;
  const auto found = waiting_by_tenant_.find(tenant);
  const std::int32_t value =
      unread + (found == waiting_by_tenant_.end() ? 0 : found->second.requests);
  if (!limit || value < *limit) return absl::OkStatus();
  return TenantFullError(tenant,
                         unread > 0 ? "waiting requests and unread answers" : "waiting requests",
                         "max_queued_requests", value, *limit);
}

absl::Status AdmissionLimiter::CheckTenantTokens(const std::string& tenant,
                                                 std::int64_t more_tokens) const {
  const std::optional<std::int64_t> limit = tenants_.LimitsOf(tenant).max_queued_tokens;
  const auto found = waiting_by_tenant_.find(tenant);
  const std::int64_t value = found == waiting_by_tenant_.end() ? 0 : found->second.tokens;
  if (!limit || more_tokens <= *limit - value) return absl::OkStatus();
  return TenantFullError(tenant, "waiting prompt tokens and no room for this prompt",
                         "max_queued_tokens", value, *limit);
}

void AdmissionLimiter::Count(const std::string& tenant, std::int32_t requests,
                             std::int64_t tokens) {
  WaitingCounts& waiting = waiting_by_tenant_[tenant];
  requests_ += requests;
  tokens_ += tokens;
  waiting.requests += requests;
  waiting.tokens += tokens;
  QUIRE_CHECK(requests_ >= 0 && tokens_ >= 0 && waiting.requests >= 0 && waiting.tokens >= 0);
  if (waiting.requests == 0 && waiting.tokens == 0) waiting_by_tenant_.erase(tenant);
}

absl::Status AdmissionLimiter::EnterRequest(const std::string& tenant, const UnreadCounts& unread) {
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(CheckTenantRequests(tenant, unread.of_tenant));
  if (requests_ >= max_requests_ - unread.total) {
    return FullError("requests", max_requests_, unread.total);
  }
  Count(tenant, 1, 0);
  return absl::OkStatus();
}

absl::Status AdmissionLimiter::AddTokens(const std::string& tenant, std::int64_t tokens) {
  MutexLock lock(&mutex_);
  // A prompt above the limit never fits, so the error does not suggest a retry.
  const std::int64_t of_tenant = tenants_.LimitsOf(tenant).max_queued_tokens.value_or(
      std::numeric_limits<std::int64_t>::max());
  const std::int64_t limit = std::min(max_tokens_, of_tenant);
  if (tokens > limit) {
    const std::string tenant_suffix =
        of_tenant < max_tokens_ ? absl::StrCat(" of tenant \"", tenant, "\"") : "";
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "prompt has ", tokens, " tokens, the limit of waiting tokens",
                          tenant_suffix, " is ", limit, " (max_queued_tokens)")),
                      Reason::kExceedsCapacity,
                      {{"field", "prompt"},
                       {"prompt_tokens", absl::StrCat(tokens)},
                       {"limit", absl::StrCat(limit)}});
  }
  QUIRE_RETURN_IF_ERROR(CheckTenantTokens(tenant, tokens));
  if (tokens > max_tokens_ - tokens_) return FullError("tokens", max_tokens_, /*unread=*/0);
  Count(tenant, 0, tokens);
  return absl::OkStatus();
}

void AdmissionLimiter::LeaveRequest(const std::string& tenant) {
  MutexLock lock(&mutex_);
  Count(tenant, -1, 0);
}

void AdmissionLimiter::RemoveTokens(const std::string& tenant, std::int64_t tokens) {
  MutexLock lock(&mutex_);
  Count(tenant, 0, -tokens);
}

void AdmissionLimiter::Update(const WorkAhead& work) {
  MutexLock lock(&mutex_);
  work_ahead_ = work;
}

absl::Duration AdmissionLimiter::RetryDelayLocked() const {
  const double total_rate =
      work_ahead_.prompt_tokens_per_second + work_ahead_.output_tokens_per_second;
  if (total_rate <= 0) return absl::Seconds(RateMeter::kWindowSeconds);
  // A rate of zero only means that there was no work of that kind recently.
  const auto time = [total_rate](std::int64_t tokens, double rate) {
    return absl::Seconds(static_cast<double>(tokens) / (rate > 0 ? rate : total_rate));
  };
  const absl::Duration longest =
      std::max(time(work_ahead_.prompt_tokens, work_ahead_.prompt_tokens_per_second),
               time(work_ahead_.output_tokens, work_ahead_.output_tokens_per_second));
  return std::clamp(longest, kMinRetryDelay, kMaxRetryDelay);
}

absl::Duration AdmissionLimiter::RetryDelay() const {
  MutexLock lock(&mutex_);
  return RetryDelayLocked();
}

std::int32_t AdmissionLimiter::queued_requests() const {
  MutexLock lock(&mutex_);
  return requests_;
}

std::int64_t AdmissionLimiter::queued_tokens() const {
  MutexLock lock(&mutex_);
  return tokens_;
}

absl::Status AdmissionLimiter::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  if (requests_ < 0 || requests_ > highest_requests_ || tokens_ < 0 || tokens_ > highest_tokens_) {
    return absl::InternalError(absl::StrCat("the admission queue has ", requests_, " requests and ",
                                            tokens_, " tokens, the limits are ", highest_requests_,
                                            " and ", highest_tokens_));
  }
  WaitingCounts sum;
  for (const auto& [tenant, waiting] : waiting_by_tenant_) {
    sum.requests += waiting.requests;
    sum.tokens += waiting.tokens;
  }
  if (sum.requests != requests_ || sum.tokens != tokens_) {
    return absl::InternalError(absl::StrCat("the tenants have ", sum.requests, " requests and ",
                                            sum.tokens, " tokens, the queue has ", requests_,
                                            " and ", tokens_));
  }
  return absl::OkStatus();
}

}  // namespace quire::engine
