#include "server/net/tls_context.h"

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <exception>
#include <utility>

#include "absl/status/statusor.h"
#include "base/logging.h"

namespace quire::server {
namespace {

namespace ssl = boost::asio::ssl;
using Error = boost::system::error_code;

int SelectHttp2(SSL*, const unsigned char** out, unsigned char* out_size,
                const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kWanted[] = {2, 'h', '2'};
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kWanted, sizeof(kWanted), offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

absl::StatusOr<std::shared_ptr<ssl::context>> MakeContext(const Certificates& certificates,
                                                          bool require_client_cert,
                                                          TlsProtocol protocol) {
  std::shared_ptr<ssl::context> context;
  try {
    context = std::make_shared<ssl::context>(ssl::context::tls_server);
  } catch (const std::exception& error) {  // thrown by Asio for an error of OpenSSL
    return absl::InternalError(error.what());
  }
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  if (protocol == TlsProtocol::kHttp2) {
    SSL_CTX_set_alpn_select_cb(native, &SelectHttp2, nullptr);
  }
  Error error;
  context->use_certificate_chain(boost::asio::buffer(certificates.chain), error);
  if (!error) {
    context->use_private_key(boost::asio::buffer(certificates.private_key), ssl::context::pem,
                             error);
  }
  if (!error && !certificates.client_ca.empty()) {
    context->add_certificate_authority(boost::asio::buffer(certificates.client_ca), error);
    ssl::verify_mode mode = ssl::verify_peer;
    if (require_client_cert) mode |= ssl::verify_fail_if_no_peer_cert;
    if (!error) context->set_verify_mode(mode, error);
  }
  if (error) return absl::InternalError(error.message());
  return context;
}

}  // namespace

std::shared_ptr<ssl::context> TlsContext::Current() {
  const std::shared_ptr<const Certificates> certificates = store_->current();
  MutexLock lock(&mutex_);
  if (context_ != nullptr && version_ == certificates->version) return context_;
  auto context = MakeContext(
      *certificates, may_require_client_certificate_ && store_->options().require_client_cert,
      protocol_);
  if (context.ok()) {
    context_ = *std::move(context);
    version_ = certificates->version;
  } else {
    log::Error("tls", "OpenSSL cannot create a TLS context with the certificate",
               {{"error", context.status().message()}});
  }
  return context_;
}

}  // namespace quire::server
