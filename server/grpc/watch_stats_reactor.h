#pragma once

// Serves AdminService.WatchStats. Streams statistics at an interval until the caller cancels, its
// token is revoked or the server shuts down.
//
// Place:      admin_service.cc creates a reactor for each call.
// Invariants: the call ends with UNAUTHENTICATED once the caller's token is revoked. Finish is
//             called exactly once, when no write and no timer is pending.
// Threads:    gRPC's callback threads.
// Lifetime:   the reactor deletes itself in OnDone.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/api/generation.h"

namespace grpc {
class CallbackServerContext;
}
namespace quire::v1 {
class Stats;
}  // namespace quire::v1

namespace quire::server {

void FillStats(const ServingState& state, const ServedModel& served, const Clock& clock,
               v1::Stats* stats);

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWatchStats(const HandlerContext& context,
                                                            const grpc::CallbackServerContext& call,
                                                            const grpc::ByteBuffer& request);

}  // namespace quire::server
