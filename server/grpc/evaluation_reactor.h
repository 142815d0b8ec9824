#pragma once

// An Embed or a Score call: one message in, an Evaluation, one message out.
//
// Place:      made by a service for each call.
// Invariants: Finish exactly once, after the engine has let go of everything of the call.
// Threads:    gRPC's callback threads and the engine's output workers. The answer, which may be
//             megabytes, is written by `worker`.
// Lifetime:   keeps itself alive until OnDone; the worker outlives it.

#include <grpcpp/support/server_callback.h>

#include "server/api/call_worker.h"
#include "server/grpc/unary_call.h"

namespace quire::server {

grpc::ServerUnaryReactor* StartEmbed(const UnaryCall& call, CallWorker* worker);
grpc::ServerUnaryReactor* StartScore(const UnaryCall& call, CallWorker* worker);

}  // namespace quire::server
