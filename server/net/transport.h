#pragma once

// Reads and writes the bytes of one connection, in plain text or through TLS.
//
// Place:      below HttpSession and GuardedConnection, which do not use sockets themselves.
// Invariants: with TLS, nothing is read or written before Handshake has succeeded. At most one
//             ReadSome and one Write are pending. Close ends all operations with an error.
// Threads:    the connection's executor, on which callbacks run too.
// Lifetime:   outlives its pending callbacks.

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace quire::server {

class Transport {
 public:
  using Error = boost::system::error_code;
  using Done = std::function<void(Error, std::size_t)>;

  virtual ~Transport() = default;

  virtual boost::asio::any_io_executor executor() = 0;
  virtual void Handshake(std::function<void(Error)> done) = 0;
  virtual void ReadSome(boost::asio::mutable_buffer buffer, Done done) = 0;
  // Writes the whole buffer.
  virtual void Write(boost::asio::const_buffer buffer, Done done) = 0;
  // Returns the common name of the peer's certificate once the handshake has verified it, or "".
  virtual std::string CertificateName() = 0;
  // Closes the sending direction. Reading continues.
  virtual void ShutdownSend() = 0;
  virtual void Close() = 0;
};

// A TCP or Unix socket.
using StreamSocket = boost::asio::generic::stream_protocol::socket;
std::unique_ptr<Transport> NewPlainTransport(StreamSocket socket);
std::unique_ptr<Transport> NewTlsTransport(StreamSocket socket,
                                           std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace quire::server
