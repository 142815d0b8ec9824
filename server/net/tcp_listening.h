#pragma once

// Listening on the addresses of this machine that a host:port stands for.
//
// Place:   below GrpcAcceptor and HttpServer, which accept.
// Threads: any.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::server {

struct TcpListening {
  std::vector<boost::asio::ip::tcp::acceptor> acceptors;  // one at least, all of one port
  std::string address;                                    // with the port that port 0 became
};

// A name can stand for several addresses, as localhost does for 127.0.0.1 and ::1: all of them get
// the same port. One of a protocol that this machine has not is passed over. `reuse_port`: others
// may listen on it, too. Errors: see BindError; INVALID_ARGUMENT for what is no host:port.
absl::StatusOr<TcpListening> ListenOnTcp(const std::string& address, bool reuse_port,
                                         const boost::asio::any_io_executor& executor);

// ALREADY_EXISTS "... is in use", or INVALID_ARGUMENT, naming the address.
absl::Status BindError(const std::string& address, const boost::system::error_code& error);

}  // namespace quire::server
