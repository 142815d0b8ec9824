#pragma once

#include <string>
#include <vector>

#include "server/api/serving_state.h"
#include "server/grpc/grpc_listener.h"

namespace quire::server {

// Publishes ServingState in grpc.health.v1 of all listeners.
//
// Place:      the daemon calls it at every change and a few times a second.
// Invariants: a name is set only when its status changes, so Watch streams every change once.
// Threads:    one thread at a time.
// Lifetime:   state and listeners outlive it.
class HealthService {
 public:
  // `ready_names` are further names, besides "" and "readiness", that report readiness.
  HealthService(const ServingState* state, std::vector<GrpcListener*> listeners,
                std::vector<std::string> ready_names);

  void Update();

 private:
  // `last` is the value that was set last, or -1 before the first call.
  void Set(const std::vector<std::string>& names, bool serving, int* last);

  const ServingState* const state_;
  const std::vector<GrpcListener*> listeners_;
  std::vector<std::string> ready_names_;
  int last_ready_ = -1, last_live_ = -1, last_started_ = -1;
};

}  // namespace quire::server
