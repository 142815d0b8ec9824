#include "engine/output/unread_answers.h"

#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "engine/output/token_stream.h"

namespace quire::engine {
namespace {

absl::Status NotRead(absl::Duration timeout) {
  const std::string millis = absl::StrCat(absl::ToInt64Milliseconds(timeout));
  return WithReason(absl::CancelledError(absl::StrCat(
                        "client read nothing of a finished answer for ", millis, " ms")),
                    Reason::kSlowClient, {{"stalled_ms", millis}});
}

}  // namespace

void UnreadAnswers::Add(const std::shared_ptr<AcceptedRequest>& request, absl::Time now) {
  const std::uint64_t taken = request->stream->num_taken();
  MutexLock lock(&mutex_);
  answers_.push_back({.request = request, .looked_at = now, .taken = taken});
  by_arrival_[request->arrival] = std::prev(answers_.end());
  ++by_tenant_[request->request.tenant];
  num_answers_.store(answers_.size(), std::memory_order_release);
}

void UnreadAnswers::RemoveLocked(std::list<Answer>::iterator answer) {
  const AcceptedRequest& request = *answer->request;
  const auto of_tenant = by_tenant_.find(request.request.tenant);
  if (--of_tenant->second == 0) by_tenant_.erase(of_tenant);
  by_arrival_.erase(request.arrival);
  answers_.erase(answer);
  num_answers_.store(answers_.size(), std::memory_order_release);
}

void UnreadAnswers::Remove(std::uint64_t arrival) {
  // Goes behind the lock: with it goes what the request holds.
  std::shared_ptr<AcceptedRequest> request;
  MutexLock lock(&mutex_);
  const auto found = by_arrival_.find(arrival);
  if (found == by_arrival_.end()) return;
  request = found->second->request;
  RemoveLocked(found->second);
}

UnreadCounts UnreadAnswers::CountsOf(const std::string& tenant) const {
  MutexLock lock(&mutex_);
  const auto found = by_tenant_.find(tenant);
  return {.total = static_cast<std::int32_t>(answers_.size()),
          .of_tenant = found == by_tenant_.end() ? 0 : found->second};
}

int UnreadAnswers::Expire(absl::Time now, absl::Duration timeout) {
  if (num_answers_.load(std::memory_order_acquire) == 0) return 0;
  std::vector<std::shared_ptr<AcceptedRequest>> silent;
  {
    MutexLock lock(&mutex_);
    while (!answers_.empty() && answers_.front().looked_at + timeout <= now) {
      Answer& answer = answers_.front();
      const std::uint64_t taken = answer.request->stream->num_taken();
      if (taken == answer.taken && answer.request->stream->is_complete()) {
        silent.push_back(answer.request);
        RemoveLocked(answers_.begin());
        continue;
      }
      answer.taken = taken;
      answer.looked_at = now;
      answers_.splice(answers_.end(), answers_, answers_.begin());
    }
  }
  for (const auto& request : silent) {
    log::Info("engine", "unread answer ended",
              {{"request_id", request->request.id}, {"tenant", request->request.tenant}});
    request->stream->Abandon(NotRead(timeout));
  }
  return static_cast<int>(silent.size());
}

absl::Time UnreadAnswers::NextExpiry(absl::Duration timeout) const {
  MutexLock lock(&mutex_);
  return answers_.empty() ? absl::InfiniteFuture() : answers_.front().looked_at + timeout;
}

}  // namespace quire::engine
