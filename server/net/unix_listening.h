#pragma once

// Listens on a Unix socket.
//
// Place:   below GrpcAcceptor, which accepts.
// Threads: any.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace quire::server {

// Listens at `path`. A socket file without a listening process is replaced, any other file is an
// error. The socket never has more permissions than `mode`. Errors name `address`: ALREADY_EXISTS
// if a process listens at the path, otherwise INVALID_ARGUMENT.
absl::StatusOr<boost::asio::local::stream_protocol::acceptor> ListenOnUnix(
    const std::string& address, const std::string& path, std::uint32_t mode,
    const boost::asio::any_io_executor& executor);

}  // namespace quire::server
