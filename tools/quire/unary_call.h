#pragma once

// Calls unary methods of quired for the subcommands of `quire`.
//
// Threads: the main thread.

#include <grpcpp/grpcpp.h>

#include <string>
#include <type_traits>

#include "tools/quire/client.h"

namespace quire::client {

// Connects to `address` and calls a method of a generated stub. The deadline starts after the
// connection attempt.
template <typename Stub, typename Request, typename Response>
grpc::Status Call(const CommonOptions& common, const std::string& address,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const std::type_identity_t<Request>& request, Response* response) {
  Stub stub(Connect(common, address));
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  return (stub.*method)(&context, request, response);
}

// Like Call, but also prints the response: with --json as JSON, otherwise with print(response).
// Prints an error instead if the call fails. Returns the exit code.
template <typename Stub, typename Request, typename Response, typename Print>
int CallAndPrint(const CommonOptions& common, const std::string& address,
                 grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const std::type_identity_t<Request>& request, const Print& print) {
  Response response;
  const grpc::Status status = Call(common, address, method, request, &response);
  if (!status.ok()) return Fail(common, status, address);
  if (common.json) {
    PrintJson(response);
  } else {
    print(response);
  }
  return kOk;
}

}  // namespace quire::client
