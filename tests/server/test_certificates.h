#pragma once

// Creates certificates for tests.

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire::server {

struct CertificateRequest {
  std::string common_name = "localhost";
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(1);
  int rsa_bits = 0;  // 0 selects an elliptic curve
};

// A key and its self-signed certificate.
class TestCertificate {
 public:
  explicit TestCertificate(const CertificateRequest& request = {});
  ~TestCertificate();

  std::string certificate_pem() const;
  std::string key_pem() const;

 private:
  EVP_PKEY* key_ = nullptr;
  X509* certificate_ = nullptr;
};

}  // namespace quire::server
