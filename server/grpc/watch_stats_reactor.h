#pragma once

// AdminService.WatchStats: the same numbers again and again until the caller cancels or the server
// ends.
//
// Place:      made by admin_service.cc for each call.
// Invariants: ends with UNAUTHENTICATED once the caller's token is revoked; Finish exactly once,
//             when no write and no timer is under way.
// Threads:    gRPC's callback threads.
// Lifetime:   deletes itself in OnDone.

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

void FillStats(const ServingState& state, const ServedModel& served, v1::Stats* stats);

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWatchStats(const HandlerContext& context,
                                                            const grpc::CallbackServerContext& call,
                                                            const grpc::ByteBuffer& request);

}  // namespace quire::server
