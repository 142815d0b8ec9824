#pragma once

// Encodes google.rpc error details. They are encoded by hand because Debian packages neither the
// .proto files nor a library with them. Declaring the package in our own files would clash with
// googleapis-common-protos in Python clients.
//
// Messages, by field number (googleapis, google/rpc/status.proto and error_details.proto):
//   Status{1 int32 code, 2 string message, 3 repeated Any}   Any{1 string type_url, 2 bytes value}
//   ErrorInfo{1 string reason, 2 string domain, 3 map<string, string> metadata}
//   RetryInfo{1 Duration}
//   Duration{1 int64 seconds, 2 int32 nanos}
//   BadRequest{1 repeated {1 string field, 2 string description}}
//   PreconditionFailure{1 repeated {1 string type, 2 string subject, 3 string description}}
//
// Place:      between api/status_mapping.h and the gRPC handlers.
// Threads:    any.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "server/api/status_mapping.h"

namespace quire::server {

// Returns a serialized google.rpc.Status with ErrorInfo, then the details that `error.detail`
// selects.
std::string EncodeErrorDetails(const WireError& error);

// Converts an error with its code, message and details. OK stays OK.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace quire::server
