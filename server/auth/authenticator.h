#pragma once

// Who calls, for which tenant, and whether he may: the one place that decides it. Transports take
// Credentials out of a call and ask; they decide nothing themselves.
//
//   none   everybody may do everything; one principal ""
//   token  SHA-256 of the bearer token is looked up in auth.tokens_file, which is refused when it
//          shows that it is not whole
//   mtls   the common name of the client certificate that TLS has verified is principal and tenant
//
// Place:      made by the daemon, in HandlerContext; asked by every handler (grpc/unary_call.h, the
//             reactors) and by the HTTP listeners.
// Invariants: the tenant never comes from a request field. Presented tokens are compared as
//             SHA-256, with every line of the table, in a time that does not depend on where they
//             differ; neither tokens nor whole hashes are logged. AdminService on a Unix socket is
//             guarded by the mode of the socket alone, in every mode; other scopes are checked on
//             Unix sockets too.
// Threads:    every method from any.
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

// What a call presents. Fields that it does not have stay empty.
struct Credentials {
  std::string bearer_token = {};      // of `authorization: Bearer TOKEN`; see BearerToken
  std::string certificate_name = {};  // common name of a client certificate that TLS has verified
  std::string tenant_metadata = {};   // quire-tenant; used with auth.trust_tenant_metadata only
  bool is_local_socket = false;       // the call came over a Unix socket
};

struct Identity {
  // Who: "" = an unnamed caller, "token:" and 16 hex digits of its hash, "cert:" and the name of
  // the certificate, "local" for the admin socket.
  std::string principal;
  std::string tenant = "default";
  ScopeSet scopes;
};

// The rules in effect, immutable: read from a file at once, put into effect at once.
struct AuthRules;

class Authenticator {
 public:
  // INVALID_ARGUMENT naming file, line and what is wrong.
  static absl::StatusOr<std::unique_ptr<Authenticator>> Create(const AuthOptions& options);
  ~Authenticator();

  // The caller, if he holds `needed`. Else UNAUTHENTICATED / TOKEN_MISSING or TOKEN_INVALID,
  // PERMISSION_DENIED / SCOPE, or INVALID_ARGUMENT / BAD_PARAMETER for a tenant in metadata that is
  // no name.
  absl::StatusOr<Identity> Authenticate(const Credentials& credentials, Scope needed) const;

  // Whether the principal of an earlier answer would still get `needed`. False once its token was
  // taken out of the file or lost the scope: then streams under way end (docs/security.md).
  bool IsStillAllowed(absl::string_view principal, Scope needed) const;
  // Grows with every Apply: as long as it stays, so do all answers.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  // A reload in two steps, so that nothing changes when anything is wrong: Read the file, then
  // Apply. `options.mode` and `options.trust_tenant_metadata` as at Create.
  static absl::StatusOr<std::shared_ptr<const AuthRules>> Read(const AuthOptions& options);
  // Those that Read reads.
  static std::vector<NamedFile> Files(const AuthOptions& options);
  void Apply(std::shared_ptr<const AuthRules> rules);
  // Both at once.
  absl::Status Reload(const AuthOptions& options);

 private:
  explicit Authenticator(std::shared_ptr<const AuthRules> rules);
  std::shared_ptr<const AuthRules> rules() const;

  mutable Mutex mutex_;
  std::shared_ptr<const AuthRules> rules_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> version_{0};
};

// The token of a header `Bearer TOKEN`, the scheme in any case; "" when it is none.
absl::string_view BearerToken(absl::string_view authorization);

// The reason of TOKEN_INVALID for streams whose token was revoked while they ran.
absl::Status RevokedError();

}  // namespace quire::server
