#pragma once

// The server's certificate, its key and the authorities for clients, read again while the process
// runs.
//
//   Create: files -> checked -> current()     thread: every refresh_interval the same, or the old
//   ones
//
// Place:      made by the daemon when tls.cert_file is set; the listeners take what is current for
//             each new connection. Connections that are open keep what they began with.
// Invariants: current() always passed ReadCertificates: it parses, the key belongs to the
//             certificate, the TLS library takes both and the chain, and it was within its dates
//             when it was read. Files that do not are logged, once for each new error, and change
//             nothing; nor do files that have not stayed as they are for kSettleTime. What
//             current() gives never becomes older contents.
// Threads:    every method from any; a thread of its own reads the files.
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
  std::string chain;  // the server's own first
  std::string private_key;
  std::string client_ca;          // empty: clients are not asked for a certificate
  std::uint64_t version = 0;      // grows with every change of current()
  std::uint64_t read_number = 0;  // grows with every Read of a store

  // For log lines.
  std::string subject;
  absl::Time not_after;
};

// Reads the files and checks what they hold, at the time `now`. INVALID_ARGUMENT begins with the
// key of the file that is wrong: cannot be read, is not PEM, has expired or does not hold yet, or
// the two do not belong together.
absl::StatusOr<Certificates> ReadCertificates(const TlsOptions& options, absl::Time now);
// Those that it reads.
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

  // Reads the files now. Not OK: they are bad, and the old ones stay.
  absl::Status Refresh();
  // The same in two steps. Read refuses files that change meanwhile. What it gave serves the next
  // connections, unless something that was read later does so already.
  absl::StatusOr<Certificates> Read();
  void Publish(Certificates certificates);

 private:
  CertificateStore(const TlsOptions& options, FileStamps stamps, Certificates certificates);
  void Run(FileStamps seen);

  const TlsOptions options_;
  Mutex read_mutex_;  // one at a time, so that their numbers are in the order of the contents
  std::uint64_t next_read_ ABSL_GUARDED_BY(read_mutex_) = 1;
  mutable Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<const Certificates> current_ ABSL_GUARDED_BY(mutex_);
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t newest_read_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace quire::server
