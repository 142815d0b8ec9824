#pragma once

// AdminService.WatchStats: the same numbers again and again until the caller cancels or the server
// ends.
//
// Place:      made by admin_service.cc for each call.
// Invariants: ends with UNAUTHENTICATED once the caller's token is revoked; Finish exactly once,
//             when no write and no timer is under way.
// Threads:    gRPC's callback threads.
// Lifetime:   deletes itself in OnDone.

#include <grpcpp/support/server_callback.h>

#include "server/api/generation.h"

namespace grpc {
class CallbackServerContext;
}
namespace quire::v1 {
class Stats;
class WatchStatsRequest;
class WatchStatsResponse;
}  // namespace quire::v1

namespace quire::server {

void FillStats(const ServingState& state, const ServedModel& served, v1::Stats* stats);

grpc::ServerWriteReactor<v1::WatchStatsResponse>* StartWatchStats(
    const HandlerContext& context, const grpc::CallbackServerContext& call,
    const v1::WatchStatsRequest& request);

}  // namespace quire::server
