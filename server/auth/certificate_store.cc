#include "server/auth/certificate_store.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/small_file.h"
#include "base/status.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

struct Deleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Bio = std::unique_ptr<BIO, Deleter>;
using Certificate = std::unique_ptr<X509, Deleter>;
using Key = std::unique_ptr<EVP_PKEY, Deleter>;

absl::Status BadFile(absl::string_view name, absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", file, " ", what));
}

absl::StatusOr<std::string> ReadFile(absl::string_view name, const std::string& file) {
  absl::StatusOr<std::string> content = ReadSmallFile(file, kMaxFileBytes);
  if (content.ok()) return content;
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", content.status().message()));
}

Bio AsBio(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// Passphrase callback that always fails. Without it, OpenSSL would prompt on the terminal.
int NoPassphrase(char*, int, int, void*) {
  return -1;
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&parts));
}

// Parses all certificates. Fails if there is no certificate or a malformed certificate.
absl::StatusOr<std::vector<Certificate>> ParseCertificates(absl::string_view name,
                                                           const std::string& file,
                                                           const std::string& pem) {
  const Bio bio = AsBio(pem);
  std::vector<Certificate> chain;
  while (X509* one = PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr)) {
    chain.emplace_back(one);
  }
  const unsigned long last = ERR_peek_last_error();
  ERR_clear_error();
  // "no start line" means the end of the file. Any other error means a malformed block.
  const bool at_end =
      ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
  if (chain.empty()) return BadFile(name, file, "contains no PEM certificate");
  if (!at_end) {
    return BadFile(
        name, file,
        absl::StrCat("contains a malformed certificate after certificate ", chain.size()));
  }
  return chain;
}

absl::Status CheckDates(absl::string_view name, const std::string& file, const X509* certificate,
                        absl::Time now) {
  const absl::Time from = ToTime(X509_get0_notBefore(certificate));
  const absl::Time until = ToTime(X509_get0_notAfter(certificate));
  if (now >= until) {
    return BadFile(name, file, absl::StrCat("expired at ", absl::FormatTime(until)));
  }
  if (now < from) {
    return BadFile(name, file, absl::StrCat("is not valid before ", absl::FormatTime(from)));
  }
  return absl::OkStatus();
}

// Accepts the file if at least one CA is valid now. During a CA rotation, others may have expired
// or may not be valid yet.
absl::Status CheckAuthorities(const std::string& file, const std::string& pem, absl::Time now) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Certificate> all,
                         ParseCertificates("tls.client_ca_file", file, pem));
  absl::Status status;
  for (const Certificate& one : all) {
    status = CheckDates("tls.client_ca_file", file, one.get(), now);
    if (status.ok()) return status;
  }
  return status;
}

// Loads chain and key into a TLS context, because the library's security level rejects short keys
// and old digests. Without this check, every handshake would fail instead.
absl::Status CheckUsable(const std::string& file, const std::vector<Certificate>& chain,
                         EVP_PKEY* key) {
  const std::unique_ptr<SSL_CTX, Deleter> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return absl::InternalError("cannot create a TLS context");
  bool is_usable = SSL_CTX_use_certificate(context.get(), chain[0].get()) == 1 &&
                   SSL_CTX_use_PrivateKey(context.get(), key) == 1 &&
                   SSL_CTX_check_private_key(context.get()) == 1;
  for (std::size_t i = 1; is_usable && i < chain.size(); ++i) {
    is_usable = SSL_CTX_add1_chain_cert(context.get(), chain[i].get()) == 1;
  }
  if (is_usable) return absl::OkStatus();
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return BadFile("tls.cert_file", file,
                 absl::StrCat("is refused by the TLS library: ", reason == nullptr ? "?" : reason));
}

absl::StatusOr<Key> ParseKey(const std::string& file, const std::string& pem) {
  const Bio bio = AsBio(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return BadFile("tls.key_file", file,
                   "contains no PEM private key that can be read without a passphrase");
  }
  return key;
}

std::string GetSubject(const X509* certificate) {
  char text[256];
  X509_NAME_oneline(X509_get_subject_name(certificate), text, sizeof(text));
  return text;
}

}  // namespace

absl::StatusOr<Certificates> ReadCertificates(const TlsOptions& options, absl::Time now) {
  Certificates result;
  QUIRE_ASSIGN_OR_RETURN(result.chain, ReadFile("tls.cert_file", options.cert_file));
  QUIRE_ASSIGN_OR_RETURN(result.private_key, ReadFile("tls.key_file", options.key_file));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                         ParseCertificates("tls.cert_file", options.cert_file, result.chain));
  for (const Certificate& one : chain) {
    QUIRE_RETURN_IF_ERROR(CheckDates("tls.cert_file", options.cert_file, one.get(), now));
  }
  QUIRE_ASSIGN_OR_RETURN(const Key key, ParseKey(options.key_file, result.private_key));
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return BadFile("tls.key_file", options.key_file,
                   absl::StrCat("is not the key of the certificate in ", options.cert_file));
  }
  QUIRE_RETURN_IF_ERROR(CheckUsable(options.cert_file, chain, key.get()));
  result.subject = GetSubject(chain[0].get());
  result.not_after = ToTime(X509_get0_notAfter(chain[0].get()));
  if (options.client_ca_file.empty()) return result;
  QUIRE_ASSIGN_OR_RETURN(result.client_ca, ReadFile("tls.client_ca_file", options.client_ca_file));
  QUIRE_RETURN_IF_ERROR(CheckAuthorities(options.client_ca_file, result.client_ca, now));
  return result;
}

std::vector<NamedFile> CertificateFiles(const TlsOptions& options) {
  std::vector<NamedFile> files = {{"tls.cert_file", options.cert_file},
                                  {"tls.key_file", options.key_file}};
  if (!options.client_ca_file.empty()) {
    files.push_back({"tls.client_ca_file", options.client_ca_file});
  }
  return files;
}

absl::StatusOr<std::unique_ptr<CertificateStore>> CertificateStore::Create(
    const TlsOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(FileStamps stamps, StampFiles(CertificateFiles(options)));
  QUIRE_ASSIGN_OR_RETURN(Certificates certificates, ReadCertificates(options, absl::Now()));
  certificates.version = 1;
  return std::unique_ptr<CertificateStore>(
      new CertificateStore(options, std::move(stamps), std::move(certificates)));
}

CertificateStore::CertificateStore(const TlsOptions& options, FileStamps stamps,
                                   Certificates certificates)
    : options_(options),
      current_(std::make_shared<const Certificates>(std::move(certificates))),
      thread_([this, stamps = std::move(stamps)] { Run(stamps); }) {}

CertificateStore::~CertificateStore() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  thread_.join();
}

std::shared_ptr<const Certificates> CertificateStore::current() const {
  MutexLock lock(&mutex_);
  return current_;
}

absl::StatusOr<Certificates> CertificateStore::Read() {
  MutexLock lock(&read_mutex_);
  const std::vector<NamedFile> files = CertificateFiles(options_);
  QUIRE_ASSIGN_OR_RETURN(const FileStamps before, StampFiles(files));
  QUIRE_ASSIGN_OR_RETURN(Certificates read, ReadCertificates(options_, absl::Now()));
  QUIRE_RETURN_IF_ERROR(CheckUnchanged(files, before));
  read.read_number = next_read_number_++;
  return read;
}

absl::Status CertificateStore::Refresh() {
  absl::StatusOr<Certificates> read = Read();
  if (read.ok()) {
    Publish(*std::move(read));
    return absl::OkStatus();
  }
  const std::string error(read.status().message());
  MutexLock lock(&mutex_);
  if (error != last_error_) {
    log::Error("tls", "cannot use the new certificates, the old ones stay in use",
               {{"error", error}, {"old_expires", absl::FormatTime(current_->not_after)}});
  }
  last_error_ = error;
  return read.status();
}

void CertificateStore::Publish(Certificates certificates) {
  MutexLock lock(&mutex_);
  if (certificates.read_number < newest_read_number_) return;
  newest_read_number_ = certificates.read_number;
  last_error_.clear();
  const bool is_same = certificates.chain == current_->chain &&
                       certificates.private_key == current_->private_key &&
                       certificates.client_ca == current_->client_ca;
  if (is_same) return;
  certificates.version = current_->version + 1;
  current_ = std::make_shared<const Certificates>(std::move(certificates));
  log::Info("tls", "new certificates apply to new connections",
            {{"subject", current_->subject},
             {"expires", absl::FormatTime(current_->not_after)},
             {"version", current_->version}});
}

// Polls the files. `seen` contains the file stamps of the previous poll. Refresh logs errors.
void CertificateStore::Run(FileStamps seen) {
  absl::Time next = MonotonicNow() + options_.refresh_interval;
  for (;;) {
    {
      MutexLock lock(&mutex_);
      while (!stop_ && MonotonicNow() < next) stop_changed_.WaitUntil(&mutex_, next);
      if (stop_) return;
    }
    absl::StatusOr<FileStamps> now = StampFiles(CertificateFiles(options_));
    if (now.ok() && *now != seen) {
      seen = *std::move(now);
      next = MonotonicNow() + std::min(kSettleTime, options_.refresh_interval);
      continue;
    }
    Refresh().IgnoreError();
    next = MonotonicNow() + options_.refresh_interval;
  }
}

}  // namespace quire::server
