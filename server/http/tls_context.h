#pragma once

// OpenSSL's form of the certificate that is current, for the HTTP listeners.
//
// Place:      between CertificateStore and the connections of HttpServer.
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

class TlsContext {
 public:
  // `may_require` false: clients need no certificate, whatever the store's options say.
  TlsContext(const CertificateStore* store, bool may_require)
      : store_(store), may_require_(may_require) {}

  // For a new connection; made again when the store has new certificates. Null if OpenSSL does not
  // take them, which is logged; the store has checked them, so that is a defect.
  std::shared_ptr<boost::asio::ssl::context> Current();

 private:
  const CertificateStore* const store_;
  const bool may_require_;
  Mutex mutex_;
  std::shared_ptr<boost::asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::server
