#pragma once

// Options of authentication and TLS.
//
// Place:      shared by configuration, authenticator and handlers.
// Threads:    plain values.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire::server {

enum class Scope : std::uint8_t {
  kGenerate,  // GenerationService, VllmEngine and the OpenAI-compatible listener
  kAdmin,     // AdminService
  kMetrics    // /metrics, /status.json and VllmEngine.GetLoads
};
inline constexpr int kNumScopes = 3;

absl::string_view ScopeName(Scope scope);  // "generate", "admin", "metrics"
std::optional<Scope> ScopeFromName(absl::string_view name);

class ScopeSet {
 public:
  constexpr ScopeSet() = default;
  static constexpr ScopeSet All() {
    ScopeSet all;
    all.bits_ = (1u << kNumScopes) - 1;
    return all;
  }

  constexpr void Add(Scope scope) { bits_ |= Bit(scope); }
  constexpr bool Has(Scope scope) const { return (bits_ & Bit(scope)) != 0; }
  friend constexpr bool operator==(const ScopeSet&, const ScopeSet&) = default;

 private:
  static constexpr std::uint32_t Bit(Scope scope) {
    return 1u << static_cast<std::uint32_t>(scope);
  }
  std::uint32_t bits_ = 0;
};

enum class AuthMode : std::uint8_t { kNone, kToken, kMtls };

// Section auth of the configuration.
struct AuthOptions {
  AuthMode mode = AuthMode::kNone;
  std::string tokens_file = {};    // for kToken
  ScopeSet anonymous_scopes = {};  // for kToken: scopes of callers without a token
  bool trust_tenant_metadata = false;
};

// Section tls of the configuration. An empty cert_file means no TLS.
struct TlsOptions {
  std::string cert_file, key_file;
  std::string client_ca_file;  // empty: client certificates are not requested
  bool require_client_cert = false;
  absl::Duration refresh_interval = absl::Seconds(60);

  bool enabled() const { return !cert_file.empty(); }
};

}  // namespace quire::server
