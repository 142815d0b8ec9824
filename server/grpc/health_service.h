#pragma once

#include <array>
#include <vector>

#include "server/api/serving_state.h"
#include "server/grpc/grpc_listener.h"

namespace quire::server {

// Carries ServingState into grpc.health.v1 of both listeners.
//
// Place:      called by the daemon at every change and a few times a second.
// Invariants: a name is set only when its answer changes, so Watch streams every change once.
// Threads:    one at a time.
// Lifetime:   state and listeners outlive it.
class HealthService {
 public:
  HealthService(const ServingState* state, std::vector<GrpcListener*> listeners);

  void Update();

 private:
  void Set(std::size_t index, const char* name, bool serving);

  const ServingState* const state_;
  const std::vector<GrpcListener*> listeners_;
  std::array<int, 5> last_;  // -1: not set yet
};

}  // namespace quire::server
