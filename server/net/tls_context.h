#pragma once

// OpenSSL's form of the certificate that is current, for the listeners.
//
// Place:      between CertificateStore and the connections of HttpServer and GrpcAcceptor.
// Invariants: TLS 1.2 or newer, no renegotiation, no session resumption, so that a client
//             certificate is checked anew with each connection.
// Threads:    any.
// Lifetime:   the store outlives it; contexts that were handed out stay valid.

#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/auth/certificate_store.h"

namespace quire::server {

// What is spoken inside. HTTP/2 is agreed on by ALPN (RFC 9113, section 3.3), which clients of gRPC
// ask for; a client that offers other protocols only is refused.
enum class TlsProtocol : std::uint8_t { kHttp1, kHttp2 };

class TlsContext {
 public:
  // `may_require` false: clients need no certificate, whatever the store's options say.
  TlsContext(const CertificateStore* store, bool may_require, TlsProtocol protocol)
      : store_(store), may_require_(may_require), protocol_(protocol) {}

  // For a new connection; made again when the store has new certificates. Null if OpenSSL does not
  // take them, which is logged; the store has checked them, so that is a defect.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  const CertificateStore* const store_;
  const bool may_require_;
  const TlsProtocol protocol_;
  Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::server
