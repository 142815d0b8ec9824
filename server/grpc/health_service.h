#pragma once

#include <string>
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
  // `ready_names`: names beside "" and "readiness" that say whether requests are welcome.
  HealthService(const ServingState* state, std::vector<GrpcListener*> listeners,
                std::vector<std::string> ready_names);

  void Update();

 private:
  // `last`: what was set before; -1: nothing.
  void Set(const std::vector<std::string>& names, bool serving, int* last);

  const ServingState* const state_;
  const std::vector<GrpcListener*> listeners_;
  std::vector<std::string> ready_names_;
  int last_ready_ = -1, last_live_ = -1, last_started_ = -1;
};

}  // namespace quire::server
