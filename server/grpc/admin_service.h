#pragma once

// quire.v1.AdminService: the control plane.
//
// Place:      registered with the control listener only (server.admin.listen).
// Invariants: methods that are not implemented return UNIMPLEMENTED / FEATURE_UNSUPPORTED. No
//             response contains text of a prompt or an output.
// Threads:    gRPC's callback threads, and the service's own workers for calls that wait.
// Lifetime:   outlives the gRPC server that it is registered with. The function's arguments outlive
//             it.

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "server/api/drain_control.h"
#include "server/api/generation.h"
#include "server/config/live_config.h"

namespace quire::server {

std::unique_ptr<grpc::Service> MakeAdminService(const HandlerContext& context, DrainControl* drain,
                                                LiveConfig* config);

}  // namespace quire::server
