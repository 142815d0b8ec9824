#include "engine/request/request_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/status.h"

namespace quire::engine {

absl::Status RequestTable::Insert(std::shared_ptr<AcceptedRequest> accepted,
                                  absl::Duration retry_delay,
                                  absl::FunctionRef<absl::Status()> admit) {
  const Request& request = accepted->request;
  Key key = {request.tenant, request.principal, request.id};
  MutexLock lock(&mutex_);
  if (requests_.contains(key)) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("request id \"", request.id, "\" is in use")),
        Reason::kRequestIdInUse);
  }
  if (requests_.size() >= capacity_) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                          requests_.size(), " requests are live, the limit is ", capacity_)),
                      Reason::kQueueFull, {{"limit", absl::StrCat(capacity_)}}, retry_delay);
  }
  QUIRE_RETURN_IF_ERROR(admit());
  requests_.emplace(std::move(key), std::move(accepted));
  return absl::OkStatus();
}

void RequestTable::Reserve(std::size_t capacity) {
  MutexLock lock(&mutex_);
  capacity_ = std::max(capacity_, capacity);
}

void RequestTable::Remove(const AcceptedRequest& accepted) {
  MutexLock lock(&mutex_);
  const Request& request = accepted.request;
  const auto it = requests_.find(std::tie(request.tenant, request.principal, request.id));
  if (it != requests_.end()) requests_.erase(it);
  if (requests_.empty()) emptied_.NotifyAll();
}

std::shared_ptr<AcceptedRequest> RequestTable::Find(const Caller& caller,
                                                    absl::string_view id) const {
  MutexLock lock(&mutex_);
  const auto it = requests_.find(std::tie(caller.tenant, caller.principal, id));
  return it == requests_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<AcceptedRequest>> RequestTable::All() const {
  std::vector<std::shared_ptr<AcceptedRequest>> all;
  {
    MutexLock lock(&mutex_);
    all.reserve(requests_.size());
    for (const auto& [key, accepted] : requests_) all.push_back(accepted);
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a->request.accept_time, a->request.id, a->request.tenant) <
           std::tie(b->request.accept_time, b->request.id, b->request.tenant);
  });
  return all;
}

bool RequestTable::WaitEmpty(absl::Duration timeout) const {
  const absl::Time until = MonotonicNow() + timeout;
  MutexLock lock(&mutex_);
  while (!requests_.empty()) {
    if (timeout != absl::InfiniteDuration() && MonotonicNow() >= until) return false;
    emptied_.WaitUntil(&mutex_, until);
  }
  return true;
}

}  // namespace quire::engine
