#pragma once

// Serves a Generate call: writes the events of a TokenStream to the wire. Pump runs on an output
// worker when the stream is ready, and on a thread of gRPC when a write has completed. It never
// blocks.
//
//   stream ready -> Pump -> StartWrite -> OnWriteDone -> Pump ... -> Finish -> OnDone
//
// Place:      the service creates a reactor for each call. GenerateFormat converts its messages.
// Invariants: at most one write is under way, so tokens that arrive meanwhile merge in the
//             TokenStream. Finish is called exactly once, after the engine has released the
//             request.
// Threads:    gRPC's callback threads and the engine's output workers; see Pump.
// Lifetime:   the reactor keeps itself alive until OnDone and until the last callback of its stream
//             has returned.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/generation.h"

namespace grpc {
class CallbackServerContext;
}

namespace quire::server {

// Converts requests, events and errors between quire.v1 and the protocol of a call. Each call has
// its own GenerateFormat, whose functions run one at a time.
struct GenerateFormat {
  absl::string_view method;  // a constant; the name in metrics and in the access log
  std::function<absl::Status(const grpc::ByteBuffer&, v1::GenerateRequest*)> parse;
  // Returns the next message, or nothing if this protocol has no message for the event.
  std::function<std::optional<grpc::ByteBuffer>(v1::GenerateResponse*)> write;
  // Replaces field names in an error with the names of this protocol. OK stays OK.
  std::function<absl::Status(const absl::Status&)> translate_fields;
};

// Returns the format of quire.v1, which converts nothing.
GenerateFormat MakeGenerateFormat();

// Starts the call and returns its reactor, which gRPC drives from then on.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(const HandlerContext& context,
                                                          grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer& request,
                                                          GenerateFormat format);

// Starts a batch stream. Its items run concurrently and end independently.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartBatchGenerate(
    const HandlerContext& context, grpc::CallbackServerContext* call);

}  // namespace quire::server
