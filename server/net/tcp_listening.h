#pragma once

// Listens on the addresses that a host:port resolves to.
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
  std::vector<boost::asio::ip::tcp::acceptor> acceptors;  // at least one, all with the same port
  std::string address;                                    // port 0 replaced by the chosen port
};

// Listens on every address of a name, for example on 127.0.0.1 and ::1 for localhost, with the same
// port. Skips addresses that this machine does not have or whose protocol it does not support.
// `reuse_port` allows other processes to listen on the port too. Returns errors of BindError, and
// INVALID_ARGUMENT if `address` is not host:port.
absl::StatusOr<TcpListening> ListenOnTcp(const std::string& address, bool reuse_port,
                                         const boost::asio::any_io_executor& executor);

// Converts a bind error to ALREADY_EXISTS ("... is in use") or INVALID_ARGUMENT, with the address.
absl::Status BindError(const std::string& address, const boost::system::error_code& error);

}  // namespace quire::server
