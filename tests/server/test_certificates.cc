#include "tests/server/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

#include "base/check.h"

namespace quire::server {
namespace {

template <typename WriteFn>
std::string ToPem(WriteFn write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  QUIRE_CHECK(write(bio) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string pem(data, static_cast<std::size_t>(size));
  BIO_free(bio);
  return pem;
}

}  // namespace

TestCertificate::TestCertificate(const CertificateRequest& request) {
  key_ = request.rsa_bits > 0 ? EVP_RSA_gen(static_cast<unsigned>(request.rsa_bits))
                              : EVP_EC_gen("P-256");
  QUIRE_CHECK(key_ != nullptr);
  certificate_ = X509_new();
  static int serial = 1;
  ASN1_INTEGER_set(X509_get_serialNumber(certificate_), ++serial);
  ASN1_TIME_set(X509_getm_notBefore(certificate_), absl::ToTimeT(request.not_before));
  ASN1_TIME_set(X509_getm_notAfter(certificate_), absl::ToTimeT(request.not_after));
  X509_set_pubkey(certificate_, key_);
  X509_NAME* const name = X509_get_subject_name(certificate_);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(request.common_name.c_str()),
                             -1, -1, 0);
  X509_set_issuer_name(certificate_, name);
  QUIRE_CHECK(X509_sign(certificate_, key_, EVP_sha256()) > 0);
}

TestCertificate::~TestCertificate() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

std::string TestCertificate::certificate_pem() const {
  return ToPem([this](BIO* bio) { return PEM_write_bio_X509(bio, certificate_); });
}

std::string TestCertificate::key_pem() const {
  return ToPem([this](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key_, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

}  // namespace quire::server
