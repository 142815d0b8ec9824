#pragma once

// The ways in which a call with one answer ends: at once, on a worker, or as not served. All ask
// first whether the caller may, so a handler that answers through here cannot forget it.
//
// Place:      grpc/ and vllm/.
// Invariants: messages are bytes to gRPC, and only those of a caller who holds the scope are
//             parsed. A message that does not parse ends the call with the reason.
// Threads:    any.

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "server/api/call_worker.h"
#include "server/api/generation.h"
#include "server/api/status_mapping.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"

namespace quire::server {

// What gRPC hands to a handler, and what the handler is.
struct UnaryCall {
  const HandlerContext& context;  // outlives the call, and a worker that it runs on
  grpc::CallbackServerContext* call;
  const grpc::ByteBuffer* request;
  grpc::ByteBuffer* response;  // valid, as the request is, until the call has ended
  absl::string_view method;    // a constant
  Scope scope;
};

// Counts the call and ends it with `status`. REQUIRES: the response is filled if the status is OK.
inline void FinishCall(const HandlerContext& context, grpc::ServerUnaryReactor* reactor,
                       absl::string_view method, const absl::Status& status) {
  const grpc::Status answer = ToGrpcStatus(status);
  context.probe->CountRpc(method, static_cast<absl::StatusCode>(answer.error_code()));
  reactor->Finish(answer);
}

// The messages of a call around `compute(caller, const Request&, Response*)`, an absl::Status.
template <typename Request, typename Response, typename Fn>
absl::Status ComputeBytes(const Identity& caller, const grpc::ByteBuffer& in, grpc::ByteBuffer* out,
                          const Fn& compute) {
  Request request;
  Response response;
  QUIRE_RETURN_IF_ERROR(ParseMessage(in, &request));
  QUIRE_RETURN_IF_ERROR(compute(caller, request, &response));
  *out = SerializeMessage(response);
  return absl::OkStatus();
}

// Ends the call with `compute(const Identity& caller, const Request&, Response*)`, an absl::Status.
template <typename Request, typename Response, typename Fn>
grpc::ServerUnaryReactor* Answer(const UnaryCall& call, const Fn& compute) {
  grpc::ServerUnaryReactor* reactor = call.call->DefaultReactor();
  const absl::StatusOr<Identity> caller =
      Authorize(call.context, *call.call, call.method, call.scope);
  FinishCall(call.context, reactor, call.method,
             caller.ok()
                 ? ComputeBytes<Request, Response>(*caller, *call.request, call.response, compute)
                 : caller.status());
  return reactor;
}

// The same on a thread of `worker`.
template <typename Request, typename Response, typename Fn>
grpc::ServerUnaryReactor* AnswerOnWorker(const UnaryCall& call, CallWorker* worker, Fn compute) {
  grpc::ServerUnaryReactor* reactor = call.call->DefaultReactor();
  absl::StatusOr<Identity> caller = Authorize(call.context, *call.call, call.method, call.scope);
  absl::Status status = caller.status();
  if (status.ok()) {
    status = worker->Run([call, reactor, caller = *std::move(caller),
                          compute = std::move(compute)] {
      FinishCall(call.context, reactor, call.method,
                 ComputeBytes<Request, Response>(caller, *call.request, call.response, compute));
    });
  }
  if (!status.ok()) FinishCall(call.context, reactor, call.method, status);
  return reactor;
}

// Ends a call of a method that is not served; what it carries is never parsed.
inline grpc::ServerUnaryReactor* RefuseUnsupported(const UnaryCall& call,
                                                   absl::string_view feature) {
  grpc::ServerUnaryReactor* reactor = call.call->DefaultReactor();
  const absl::Status caller = Authorize(call.context, *call.call, call.method, call.scope).status();
  FinishCall(call.context, reactor, call.method,
             caller.ok() ? FeatureUnsupported(feature, "") : caller);
  return reactor;
}

}  // namespace quire::server
