#pragma once

// Answers unary calls at once, on a worker, or with the error of an unsupported method. All
// functions authorize the caller first, so that no handler that uses them can omit it.
//
// Place:      grpc/ and vllm/.
// Invariants: gRPC passes messages as bytes. A message is parsed only if the caller has the scope.
//             If the message cannot be parsed, the error of the call gives the cause.
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

// The arguments that gRPC passes to a handler, and the handler's name and scope.
struct UnaryCall {
  const HandlerContext& context;  // outlives the call and the worker
  grpc::CallbackServerContext* call;
  const grpc::ByteBuffer* request;
  grpc::ByteBuffer* response;  // like the request, valid until the call has ended
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

// Parses the request, calls `compute(caller, const Request&, Response*)`, which returns an
// absl::Status, and serializes the response.
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

// Runs `compute(const Identity& caller, const Request&, Response*)`, which returns an absl::Status,
// and ends the call with its result.
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

// Like Answer, but runs `compute` on a thread of `worker`.
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

// Ends a call of a method that is not implemented, without parsing its message.
inline grpc::ServerUnaryReactor* RefuseUnsupported(const UnaryCall& call,
                                                   absl::string_view feature) {
  grpc::ServerUnaryReactor* reactor = call.call->DefaultReactor();
  const absl::Status caller = Authorize(call.context, *call.call, call.method, call.scope).status();
  FinishCall(call.context, reactor, call.method,
             caller.ok() ? FeatureUnsupported(feature, "") : caller);
  return reactor;
}

}  // namespace quire::server
