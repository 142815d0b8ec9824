#pragma once

// Functions that the gRPC handlers share: messages as bytes, metadata and authorization.
//
// Place:      grpc/ only.
// Threads:    any.

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "engine/output/token_stream.h"
#include "server/api/generation.h"
#include "server/api/request_translator.h"
#include "server/auth/authenticator.h"

namespace google::protobuf {
class Message;
}

namespace quire::server {

// Parses `bytes`. The error names a text field that is not UTF-8 (api/wire_check.h).
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// Returns the first value of metadata `key`, or "".
std::string MetadataValue(const grpc::CallbackServerContext& call, const char* key);

// Returns the authenticated caller if it has `scope`. Every handler calls this before it does
// anything else. Refusals are logged.
absl::StatusOr<Identity> Authorize(const HandlerContext& context,
                                   const grpc::CallbackServerContext& call,
                                   absl::string_view method, Scope scope);

// Returns principal, tenant, ids and times of a call that arrives now.
CallInfo ReadCallInfo(const grpc::CallbackServerContext& call, const Identity& caller,
                      const Clock& clock);

// Converts a monotonic time for alarms and the server's shutdown. gRPC expects wall time and waits
// on a monotonic clock.
std::chrono::system_clock::time_point ToGrpcTime(absl::Time monotonic);

// Adds quire-usage-bin to the trailing metadata.
void AddUsageTrailer(grpc::CallbackServerContext* call, const engine::Usage& usage);

}  // namespace quire::server
