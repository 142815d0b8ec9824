#pragma once

// Authenticates callers and checks their scopes. Transports extract Credentials from a call, and
// this class makes every decision.
//
//   none   every caller has every scope; the principal is ""
//   token  the SHA-256 of the bearer token is looked up in auth.tokens_file; a file that looks
//          truncated is refused
//   mtls   the common name of the verified client certificate determines principal and tenant; the
//          scope metrics needs no certificate
//
// Place:      created by the daemon, in HandlerContext; used by every handler (grpc/unary_call.h,
//             the reactors) and by the HTTP listeners.
// Invariants: the tenant never comes from a request field. The SHA-256 of a presented token is
//             compared with every line of the table, in constant time. Tokens and complete hashes
//             are not logged. In every mode, AdminService on a Unix socket is protected only by the
//             socket's permissions. Scopes other than admin are checked on Unix sockets too.
// Threads:    thread-safe.
// Lifetime:   outlives listeners and handlers.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/settled_files.h"
#include "server/auth/auth_options.h"

namespace quire::server {

// Credentials of a call. Absent credentials are empty.
struct Credentials {
  std::string bearer_token = {};      // from `authorization: Bearer TOKEN`; see BearerToken
  std::string certificate_name = {};  // common name of the verified client certificate
  std::string tenant_metadata = {};   // quire-tenant; used only with auth.trust_tenant_metadata
  bool is_local_socket = false;       // the call arrived on a Unix socket
};

struct Identity {
  // "" for an anonymous caller, "token:" and 16 hex digits of the token's hash, "cert:" and the
  // certificate's common name, or "local" for the admin socket.
  std::string principal;
  std::string tenant = "default";
  ScopeSet scopes;
};

// The rules in effect. Immutable; replaced as a whole.
struct AuthRules;

class Authenticator {
 public:
  // If the token file is bad, returns INVALID_ARGUMENT with file, line and problem.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const AuthOptions& options);
  ~Authenticator();

  // Returns the identity of the caller if the caller has the scope `needed`. Otherwise returns
  // UNAUTHENTICATED / TOKEN_MISSING or TOKEN_INVALID, or PERMISSION_DENIED / SCOPE_MISSING. A
  // malformed tenant in the metadata is INVALID_ARGUMENT / BAD_PARAMETER.
  absl::StatusOr<Identity> Authenticate(const Credentials& credentials, Scope needed) const;

  // Returns true if a principal that was authenticated earlier still has the scope `needed`. The
  // result becomes false if a reload has removed the token or the scope. The streams of that token
  // then end (docs/security.md).
  bool IsStillAllowed(absl::string_view principal, Scope needed) const;
  // Every Apply increments the version. While the version is unchanged, IsStillAllowed returns
  // the same results.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // Read and Apply are the two steps of a reload. If Read fails, nothing has changed. REQUIRES:
  // `options.mode` and `options.trust_tenant_metadata` are the values that were passed to Create.
  static absl::StatusOr<std::shared_ptr<const AuthRules>> Read(const AuthOptions& options);
  // Returns the files that Read reads.
  static std::vector<NamedFile> Files(const AuthOptions& options);
  void Apply(std::shared_ptr<const AuthRules> rules);

 private:
  explicit Authenticator(std::shared_ptr<const AuthRules> rules);
  std::shared_ptr<const AuthRules> rules() const;

  mutable Mutex mutex_;
  std::shared_ptr<const AuthRules> rules_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> version_{0};
};

// Returns the token of a header `Bearer TOKEN` (scheme in any case), or "" if there is no token.
absl::string_view BearerToken(absl::string_view authorization);

// Returns the TOKEN_INVALID status of a stream whose token was revoked.
absl::Status RevokedError();

}  // namespace quire::server
