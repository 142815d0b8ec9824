#pragma once

// The two ways a call with one answer ends: at once, or on a worker. Both ask first whether the
// caller may, so a handler that answers through here cannot forget it.
//
// Place:      grpc/ only.
// Invariants: `compute` runs only for callers who hold `scope`. Without memory for it the call ends
//             with NO_MEMORY, and so it does while its message is parsed where the method is a raw
//             one: gRPC itself ends the process when it parses a message without memory.
// Threads:    any.

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/within_memory.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"

namespace quire::server {

// Counts the call and ends it with `status`. REQUIRES: the response is filled if the status is OK.
inline void FinishCall(const HandlerContext& context, grpc::ServerUnaryReactor* reactor,
                       absl::string_view method, const absl::Status& status) {
  const grpc::Status answer = ToGrpcStatus(status);
  context.probe->CountRpc(method, static_cast<absl::StatusCode>(answer.error_code()));
  reactor->Finish(answer);
}

// Ends the call with `compute(const Identity& caller)`, an absl::Status.
template <typename Fn>
grpc::ServerUnaryReactor* Answer(const HandlerContext& context, grpc::CallbackServerContext* call,
                                 absl::string_view method, Scope scope, Fn compute) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const absl::StatusOr<Identity> caller = Authorize(context, *call, method, scope);
  FinishCall(context, reactor, method,
             caller.ok() ? WithinMemory([&] { return compute(*caller); }) : caller.status());
  return reactor;
}

// The same for a raw method, with `compute(const Identity& caller, const Request&, Response*)`.
template <typename Request, typename Response, typename Fn>
grpc::ServerUnaryReactor* AnswerBytes(const HandlerContext& context,
                                      grpc::CallbackServerContext* call, absl::string_view method,
                                      Scope scope, const grpc::ByteBuffer& bytes,
                                      grpc::ByteBuffer* out, Fn compute) {
  return Answer(context, call, method, scope, [&](const Identity& caller) -> absl::Status {
    Request request;
    Response response;
    QUIRE_RETURN_IF_ERROR(ParseMessage(bytes, &request));
    QUIRE_RETURN_IF_ERROR(compute(caller, request, &response));
    *out = SerializeMessage(response);
    return absl::OkStatus();
  });
}

// Ends the call with what `compute(const Identity& caller)` returns on a thread of `worker`.
// Request and response stay valid until then. `method` is a constant; `context` outlives the
// worker.
template <typename Fn>
grpc::ServerUnaryReactor* AnswerOnWorker(const HandlerContext& context, CallWorker* worker,
                                         grpc::CallbackServerContext* call,
                                         absl::string_view method, Scope scope, Fn compute) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  absl::StatusOr<Identity> caller = Authorize(context, *call, method, scope);
  absl::Status status = caller.status();
  if (status.ok()) {
    status = worker->Run(
        [&context, reactor, method, caller = *std::move(caller), compute = std::move(compute)] {
          FinishCall(context, reactor, method, WithinMemory([&] { return compute(caller); }));
        });
  }
  if (!status.ok()) FinishCall(context, reactor, method, status);
  return reactor;
}

}  // namespace quire::server
