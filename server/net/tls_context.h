#pragma once

// The OpenSSL context of the current certificate, for the listeners.
//
// Place:      between CertificateStore and the connections of HttpServer and GrpcAcceptor.
// Invariants: connections use TLS 1.2 or newer, without renegotiation. Sessions are not resumed, so
//             that a client certificate is checked anew with each connection.
// Threads:    any.
// Lifetime:   the store outlives it. Returned contexts stay valid.

#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "server/auth/certificate_store.h"

namespace quire::server {

// The protocol inside TLS. HTTP/2 is negotiated by ALPN (RFC 9113, section 3.3). A client that
// offers only other protocols is refused. Clients of gRPC offer h2.
enum class TlsProtocol : std::uint8_t { kHttp1, kHttp2 };

class TlsContext {
 public:
  // If `may_require_client_certificate` is false, clients need no certificate, whatever the options
  // of `store` are.
  TlsContext(const CertificateStore* store, bool may_require_client_certificate,
             TlsProtocol protocol)
      : store_(store),
        may_require_client_certificate_(may_require_client_certificate),
        protocol_(protocol) {}

  // Returns the context for new connections. Rebuilds the context if the store has new
  // certificates. If OpenSSL fails, logs an error and returns the previous context, or null if
  // there is none.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  const CertificateStore* const store_;
  const bool may_require_client_certificate_;
  const TlsProtocol protocol_;
  Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::server
