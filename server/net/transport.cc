#include "server/net/transport.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <exception>
#include <optional>
#include <utility>

namespace quire::server {
namespace {

namespace net = boost::asio;

void ShutdownSocket(StreamSocket& socket) {
  Transport::Error ignored;  // the peer may be gone already
  socket.shutdown(StreamSocket::shutdown_send, ignored);
}

void CloseSocket(StreamSocket& socket) {
  Transport::Error ignored;
  socket.close(ignored);
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(StreamSocket socket) : socket_(std::move(socket)) {}

  net::any_io_executor executor() override { return socket_.get_executor(); }
  void Handshake(std::function<void(Error)> done) override { done(Error()); }
  void ReadSome(net::mutable_buffer buffer, Done done) override {
    socket_.async_read_some(buffer, std::move(done));
  }
  void Write(net::const_buffer buffer, Done done) override {
    net::async_write(socket_, buffer, std::move(done));
  }
  std::string CertificateName() override { return ""; }
  void ShutdownSend() override { ShutdownSocket(socket_); }
  void Close() override { CloseSocket(socket_); }

 private:
  StreamSocket socket_;
};

// The TLS state uses more than 100 KiB, so it is created only when the client's first bytes arrive.
class TlsTransport final : public Transport {
 public:
  TlsTransport(StreamSocket socket, std::shared_ptr<net::ssl::context> context)
      : context_(std::move(context)), socket_(std::move(socket)) {}

  net::any_io_executor executor() override { return socket().get_executor(); }
  void Handshake(std::function<void(Error)> done) override {
    socket_.async_wait(StreamSocket::wait_read, [this, done = std::move(done)](Error error) {
      if (error) return done(error);
      try {
        stream_.emplace(std::move(socket_), *context_);
      } catch (const std::exception&) {  // thrown by Asio for an error of OpenSSL
        return done(net::error::no_memory);
      }
      stream_->async_handshake(net::ssl::stream_base::server, done);
    });
  }
  void ReadSome(net::mutable_buffer buffer, Done done) override {
    stream_->async_read_some(buffer, std::move(done));
  }
  void Write(net::const_buffer buffer, Done done) override {
    net::async_write(*stream_, buffer, std::move(done));
  }

  std::string CertificateName() override {
    SSL* const ssl = stream_->native_handle();
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(ssl),
                                                                  &X509_free);
    if (certificate == nullptr || SSL_get_verify_result(ssl) != X509_V_OK) return "";
    X509_NAME* const subject = X509_get_subject_name(certificate.get());
    const int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (index < 0) return "";
    unsigned char* bytes = nullptr;
    const int size =
        ASN1_STRING_to_UTF8(&bytes, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
    if (size < 0) return "";
    std::string name(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    OPENSSL_free(bytes);
    return name;
  }

  // Sends no close_notify, which would have to wait for a pending read. The framing of HTTP marks
  // the end of an answer.
  void ShutdownSend() override { ShutdownSocket(socket()); }
  void Close() override { CloseSocket(socket()); }

 private:
  StreamSocket& socket() { return stream_ ? stream_->next_layer() : socket_; }

  const std::shared_ptr<net::ssl::context> context_;
  StreamSocket socket_;  // moves into stream_
  std::optional<net::ssl::stream<StreamSocket>> stream_;
};

}  // namespace

std::unique_ptr<Transport> NewPlainTransport(StreamSocket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> NewTlsTransport(StreamSocket socket,
                                           std::shared_ptr<net::ssl::context> context) {
  return std::make_unique<TlsTransport>(std::move(socket), std::move(context));
}

}  // namespace quire::server
