#pragma once

// The bytes of one connection, plain or through TLS.
//
// Place:      below HttpSession and GuardedConnection, which know no sockets.
// Invariants: nothing is read or written before Handshake has succeeded, then at most one ReadSome
//             and one Write are under way. After Close all end with an error.
// Threads:    the sequence of the connection, on which callbacks run too.
// Lifetime:   the owner keeps it until the last callback has run.

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
  // All of it.
  virtual void Write(boost::asio::const_buffer buffer, Done done) = 0;
  // The common name of the peer's certificate once the handshake has verified it, or "".
  virtual std::string CertificateName() = 0;
  // Tells the peer that nothing more comes; reading goes on.
  virtual void ShutdownSend() = 0;
  virtual void Close() = 0;
};

// Of TCP or a Unix socket.
using StreamSocket = boost::asio::generic::stream_protocol::socket;
std::unique_ptr<Transport> NewPlainTransport(StreamSocket socket);
std::unique_ptr<Transport> NewTlsTransport(StreamSocket socket,
                                           std::shared_ptr<boost::asio::ssl::context> context);

}  // namespace quire::server
