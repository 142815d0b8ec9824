#include "server/grpc/health_service.h"

#include <utility>

namespace quire::server {

HealthService::HealthService(const ServingState* state, std::vector<GrpcListener*> listeners,
                             std::vector<std::string> ready_names)
    : state_(state), listeners_(std::move(listeners)), ready_names_(std::move(ready_names)) {
  ready_names_.emplace_back("");
  ready_names_.emplace_back("readiness");
}

void HealthService::Update() {
  // Names are set one by one. A call for all names would also set liveness, which stays SERVING
  // during a drain.
  Set(ready_names_, state_->is_ready(), &last_ready_);
  Set({"liveness"}, state_->is_live(), &last_live_);
  Set({"startup"}, state_->is_started(), &last_started_);
}

void HealthService::Set(const std::vector<std::string>& names, bool serving, int* last) {
  if (*last == static_cast<int>(serving)) return;
  *last = static_cast<int>(serving);
  for (GrpcListener* listener : listeners_) {
    for (const std::string& name : names) listener->SetServing(name, serving);
  }
}

}  // namespace quire::server
