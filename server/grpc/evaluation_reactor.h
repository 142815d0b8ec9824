#pragma once

// Serves an Embed or a Score call: one request message, an Evaluation, one response message.
//
// Place:      the service creates a reactor for each call.
// Invariants: Finish is called exactly once, after the engine has released everything of the call.
// Threads:    gRPC's callback threads and the engine's output workers. The response may have
//             megabytes, so `worker` serializes it, unless its queue is full.
// Lifetime:   the reactor keeps itself alive until OnDone. The worker outlives it.

#include <grpcpp/support/server_callback.h>

#include "server/api/call_worker.h"
#include "server/grpc/unary_call.h"

namespace quire::server {

grpc::ServerUnaryReactor* StartEmbed(const UnaryCall& call, CallWorker* worker);
grpc::ServerUnaryReactor* StartScore(const UnaryCall& call, CallWorker* worker);

}  // namespace quire::server
