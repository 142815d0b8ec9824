#include "engine/output/unread_answers.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/output/token_stream.h"

namespace quire::engine {
namespace {

absl::Status NotReadError(absl::Duration timeout) {
  const std::string millis = absl::StrCat(absl::ToInt64Milliseconds(timeout));
  return WithReason(absl::CancelledError(absl::StrCat(
                        "the client did not read a finished answer for ", millis, " ms")),
                    Reason::kSlowClient, {{"stalled_ms", millis}});
}

}  // namespace

void UnreadAnswers::Add(const AcceptedRequest& request, absl::Time now) {
  const std::uint64_t taken = request.stream->num_taken();
  MutexLock lock(&mutex_);
  answers_.push_back({.stream = request.stream,
                      .arrival = request.arrival,
                      .id = request.request.id,
                      .tenant = request.request.tenant,
                      .checked_at = now,
                      .taken = taken});
  by_arrival_[request.arrival] = std::prev(answers_.end());
  ++by_tenant_[request.request.tenant];
  num_answers_.store(answers_.size(), std::memory_order_release);
}

void UnreadAnswers::RemoveLocked(std::list<Answer>::iterator answer) {
  const auto of_tenant = by_tenant_.find(answer->tenant);
  if (--of_tenant->second == 0) by_tenant_.erase(of_tenant);
  by_arrival_.erase(answer->arrival);
  answers_.erase(answer);
  num_answers_.store(answers_.size(), std::memory_order_release);
}

void UnreadAnswers::Remove(std::uint64_t arrival) {
  MutexLock lock(&mutex_);
  const auto found = by_arrival_.find(arrival);
  if (found == by_arrival_.end()) return;
  RemoveLocked(found->second);  // the calling reader still has the stream
}

UnreadCounts UnreadAnswers::CountsOf(const std::string& tenant) const {
  MutexLock lock(&mutex_);
  const auto found = by_tenant_.find(tenant);
  return {.total = static_cast<std::int32_t>(answers_.size()),
          .of_tenant = found == by_tenant_.end() ? 0 : found->second};
}

int UnreadAnswers::Expire(absl::Time now, absl::Duration timeout) {
  if (num_answers_.load(std::memory_order_acquire) == 0) return 0;
  std::vector<Answer> expired;
  {
    MutexLock lock(&mutex_);
    for (int checks = 0; checks < kMaxChecks && !answers_.empty(); ++checks) {
      Answer& answer = answers_.front();
      if (answer.checked_at + timeout > now) break;
      const std::uint64_t taken = answer.stream->num_taken();
      if (taken == answer.taken && answer.stream->is_complete()) {
        expired.push_back(answer);
        RemoveLocked(answers_.begin());
        continue;
      }
      answer.taken = taken;
      answer.checked_at = now;
      answers_.splice(answers_.end(), answers_, answers_.begin());
    }
  }
  for (const Answer& answer : expired) {
    log::Info("engine", "unread answer dropped",
              {{"request_id", answer.id}, {"tenant", answer.tenant}});
    answer.stream->Abandon(NotReadError(timeout));
  }
  return static_cast<int>(expired.size());
}

absl::Time UnreadAnswers::NextExpiry(absl::Duration timeout) const {
  MutexLock lock(&mutex_);
  return answers_.empty() ? absl::InfiniteFuture() : answers_.front().checked_at + timeout;
}

}  // namespace quire::engine
