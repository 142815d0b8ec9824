#include "engine/step/request_timers.h"

namespace quire::engine {

void RequestTimers::Add(const AcceptedRequest& request) {
  if (request.request.deadline != absl::InfiniteFuture()) {
    timers_.insert({request.request.deadline, request.arrival, Kind::kDeadline});
  }
  if (request.queue_deadline != absl::InfiniteFuture()) {
    timers_.insert({request.queue_deadline, request.arrival, Kind::kQueue});
  }
}

void RequestTimers::Remove(const AcceptedRequest& request) {
  timers_.erase({request.request.deadline, request.arrival, Kind::kDeadline});
  RemoveQueueTimer(request);
}

void RequestTimers::RemoveQueueTimer(const AcceptedRequest& request) {
  timers_.erase({request.queue_deadline, request.arrival, Kind::kQueue});
}

std::optional<RequestTimers::Timer> RequestTimers::FindDue(absl::Time now) const {
  if (timers_.empty() || timers_.begin()->time > now) return std::nullopt;
  return *timers_.begin();
}

absl::Time RequestTimers::next() const {
  return timers_.empty() ? absl::InfiniteFuture() : timers_.begin()->time;
}

}  // namespace quire::engine
