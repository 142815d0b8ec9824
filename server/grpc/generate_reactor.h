#pragma once

// One Generate call: TokenStream -> messages on the wire. The engine's output worker or gRPC's own
// thread moves it on, the one that has news; neither ever waits.
//
//   stream ready -> Pump -> StartWrite -> OnWriteDone -> Pump ... -> Finish -> OnDone
//
// Place:      made by a service for each call; GenerateFormat has the words of its protocol.
// Invariants: at most one write under way, so tokens that arrive meanwhile merge in the
//             TokenStream; Finish exactly once, after the engine has let go of the request.
// Threads:    gRPC's callback threads and the engine's output workers; see Pump.
// Lifetime:   keeps itself alive until OnDone and until the last callback of its stream has
//             returned.

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

// How one protocol writes down a generation: its words for the request, the events and the errors.
// One value for each call; its functions run one at a time.
struct GenerateFormat {
  absl::string_view method;  // a constant, of metrics and the access log
  std::function<absl::Status(const grpc::ByteBuffer&, v1::GenerateRequest*)> parse;
  // The next message; nothing when the event says nothing in this protocol.
  std::function<std::optional<grpc::ByteBuffer>(v1::GenerateResponse*)> write;
  // A status with the fields' names of this protocol; OK stays OK.
  std::function<absl::Status(const absl::Status&)> name_fields;
};

// Of quire.v1.
GenerateFormat MakeGenerateFormat();

// Starts the call and returns its reactor, which gRPC drives from here on.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(const HandlerContext& context,
                                                          grpc::CallbackServerContext* call,
                                                          const grpc::ByteBuffer& request,
                                                          GenerateFormat format);

// The same for a batch stream; items run side by side and end on their own.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartBatchGenerate(
    const HandlerContext& context, grpc::CallbackServerContext* call);

}  // namespace quire::server
