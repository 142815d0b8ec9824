#pragma once

// Connections of the tests' clients.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

namespace quire::server {

// Returns a connected channel. gRPC 1.51 sometimes reports a pending first attempt as failed
// (https://github.com/grpc/grpc/pull/35064), which would fail the first call.
inline std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address,
                                                const grpc::ChannelArguments& arguments = {}) {
  std::shared_ptr<grpc::Channel> channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
  return channel;
}

}  // namespace quire::server
