#include "server/grpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace quire::server {
namespace {

grpc_ssl_client_certificate_request_type RequestType(const TlsOptions& options) {
  if (options.client_ca_file.empty()) return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  return options.require_client_cert ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                     : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
}

class TlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsCredentials(const CertificateStore* store) : store_(store) {
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            RequestType(store->options()), &Fetch, this));
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }
  TlsCredentials(const TlsCredentials&) = delete;
  TlsCredentials& operator=(const TlsCredentials&) = delete;

  // Our handlers look at metadata themselves.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC asks before each handshake of the port, one at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto* const credentials = static_cast<TlsCredentials*>(self);
    const std::shared_ptr<const Certificates> current = credentials->store_->current();
    // gRPC does not tell whether it took what it got before; the store gives out only what the TLS
    // library takes.
    if (credentials->version_.exchange(current->version) == current->version) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const grpc_ssl_pem_key_cert_pair pair = {current->private_key.c_str(), current->chain.c_str()};
    // gRPC insists on authorities; where clients are not asked for certificates it uses none.
    const std::string& authorities =
        current->client_ca.empty() ? current->chain : current->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const CertificateStore* const store_;
  std::atomic<std::uint64_t> version_{0};
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore* store) {
  return std::make_shared<TlsCredentials>(store);
}

}  // namespace quire::server
