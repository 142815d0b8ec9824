#pragma once

// The server's certificate, its private key and the CAs of clients. The files are read again
// periodically while the process runs.
//
//   Create: read and check the files -> current()
//   thread: read and check again every refresh_interval; on errors the old contents stay
//
// Place:      created by the daemon if tls.cert_file is set. Listeners use current() for each new
//             connection; open connections keep their certificates.
// Invariants: current() has passed the checks of ReadCertificates. Contents that fail a check are
//             ignored, and each new error is logged once. If a file has changed, the thread reads
//             the files only after they have not changed for kSettleTime, or for refresh_interval
//             if that is shorter. Older contents never replace newer ones.
// Threads:    thread-safe; its own thread reads the files.
// Lifetime:   outlives the listeners.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/settled_files.h"
#include "server/auth/auth_options.h"

namespace quire::server {

// Contents of the files, in PEM.
struct Certificates {
  std::string chain;  // server certificate first
  std::string private_key;
  std::string client_ca;          // empty: client certificates are not requested
  std::uint64_t version = 0;      // incremented when current() changes
  std::uint64_t read_number = 0;  // incremented by every Read

  // Used in log lines.
  std::string subject;
  absl::Time not_after;
};

// Reads the files and checks them for the time `now`. Returns INVALID_ARGUMENT if a file is
// unreadable or not PEM, or if the key does not belong to the certificate. Returns the same code if
// the TLS library refuses the chain or the key. Returns the same code if a certificate of the
// chain, or every client CA, is expired or not yet valid. The message begins with the configuration
// key of the file.
absl::StatusOr<Certificates> ReadCertificates(const TlsOptions& options, absl::Time now);
// Returns the files that ReadCertificates reads.
std::vector<NamedFile> CertificateFiles(const TlsOptions& options);

class CertificateStore {
 public:
  // REQUIRES: options.enabled().
  static absl::StatusOr<std::unique_ptr<CertificateStore>> Create(const TlsOptions& options);
  ~CertificateStore();
  CertificateStore(const CertificateStore&) = delete;
  CertificateStore& operator=(const CertificateStore&) = delete;

  std::shared_ptr<const Certificates> current() const;
  const TlsOptions& options() const { return options_; }

  // Reads the files now. On errors the old contents stay in use.
  absl::Status Refresh();
  // Read and Publish are the two steps of Refresh. Read fails if a file changes while it is read.
  // Publish makes the contents current, unless contents that were read later are current already.
  absl::StatusOr<Certificates> Read();
  void Publish(Certificates certificates);

 private:
  CertificateStore(const TlsOptions& options, FileStamps stamps, Certificates certificates);
  void Run(FileStamps seen);

  const TlsOptions options_;
  Mutex read_mutex_;  // serializes Read, so that read numbers follow the order of the contents
  std::uint64_t next_read_number_ ABSL_GUARDED_BY(read_mutex_) = 1;
  mutable Mutex mutex_;
  CondVar stop_changed_;
  std::shared_ptr<const Certificates> current_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t newest_read_number_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::server
