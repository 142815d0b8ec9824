#pragma once

// quire.v1.AdminService: the control plane.
//
// Place:      registered with the control listener only (server.admin.listen).
// Invariants: methods that are not implemented return UNIMPLEMENTED / FEATURE_UNSUPPORTED. No
//             response contains text of a prompt or an output.
// Threads:    gRPC's callback threads, and the service's own workers for calls that wait.
// Lifetime:   outlives the gRPC server that it is registered with. The constructor's arguments
//             outlive it.

#include <memory>

#include "server/api/drain_control.h"
#include "server/api/generation.h"
#include "server/config/live_config.h"

namespace grpc {
class Service;
}

namespace quire::server {

class AdminService {
 public:
  AdminService(const HandlerContext& context, DrainControl* drain, LiveConfig* config);
  ~AdminService();

  grpc::Service* service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
