#pragma once

// How callers are known and what they may do, as the configuration says it.
//
// Place:      shared by configuration, authenticator and handlers.
// Threads:    values.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace quire::server {

enum class Scope : std::uint8_t {
  kGenerate,  // GenerationService, the OpenAI-compatible listener
  kAdmin,     // AdminService
  kMetrics    // /metrics
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

// auth.*
struct AuthOptions {
  AuthMode mode = AuthMode::kNone;
  std::string tokens_file = {};    // kToken
  ScopeSet anonymous_scopes = {};  // kToken: of callers without a token
  bool trust_tenant_metadata = false;
};

// tls.*; an empty cert_file means plain text.
struct TlsOptions {
  std::string cert_file, key_file;
  std::string client_ca_file;  // empty: clients show no certificate
  bool require_client_cert = false;
  absl::Duration refresh_interval = absl::Seconds(60);

  bool enabled() const { return !cert_file.empty(); }
};

}  // namespace quire::server
