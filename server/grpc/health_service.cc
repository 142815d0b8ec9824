#include "server/grpc/health_service.h"

#include <utility>

namespace quire::server {

HealthService::HealthService(const ServingState* state, std::vector<GrpcListener*> listeners)
    : state_(state), listeners_(std::move(listeners)) {
  last_.fill(-1);
}

void HealthService::Update() {
  const bool ready = state_->is_ready();
  // One by one: a call for all names would also turn liveness, which must survive a drain.
  Set(0, "", ready);
  Set(1, "quire.v1.GenerationService", ready);
  Set(2, "readiness", ready);
  Set(3, "liveness", state_->is_live());
  Set(4, "startup", state_->is_started());
}

void HealthService::Set(std::size_t index, const char* name, bool serving) {
  if (last_[index] == static_cast<int>(serving)) return;
  last_[index] = static_cast<int>(serving);
  for (GrpcListener* listener : listeners_) listener->SetServing(name, serving);
}

}  // namespace quire::server
