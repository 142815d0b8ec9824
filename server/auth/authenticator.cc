#include "server/auth/authenticator.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/small_file.h"
#include "base/status.h"

namespace quire::server {
namespace {

using Digest = std::array<unsigned char, SHA256_DIGEST_LENGTH>;

// Maximum number of tokens in the file. The token of a call is compared with all of them, which
// takes about 0.1 ms.
constexpr std::size_t kMaxTokens = 10000;
constexpr std::size_t kMaxFileBytes = std::size_t{4} << 20;
constexpr std::size_t kMaxTenantBytes = 64;
constexpr std::size_t kShownDigestBytes = 8;  // bytes of the hash in the principal

constexpr absl::string_view kCountPrefix = "# tokens:";
constexpr absl::string_view kTokenPrefix = "token:";
constexpr absl::string_view kCertificatePrefix = "cert:";
constexpr absl::string_view kLocalPrincipal = "local";

struct TokenLine {
  Digest digest;
  std::string principal;
  std::string tenant;
  ScopeSet scopes;
};

absl::string_view AsText(const Digest& digest) {
  return absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size());
}

Digest Hash(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

// Returns true for 1 to 64 bytes without control characters, which are safe in log lines and
// labels.
bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxTenantBytes &&
         std::none_of(name.begin(), name.end(),
                      [](unsigned char c) { return absl::ascii_iscntrl(c); });
}

absl::Status MissingTokenError(absl::string_view text) {
  return WithReason(absl::UnauthenticatedError(text), Reason::kTokenMissing);
}

absl::Status InvalidTokenError(absl::string_view text) {
  return WithReason(absl::UnauthenticatedError(text), Reason::kTokenInvalid);
}

absl::Status MissingScopeError(absl::string_view who, Scope scope) {
  return WithReason(
      absl::PermissionDeniedError(absl::StrCat(who, " lacks the scope ", ScopeName(scope))),
      Reason::kScopeMissing, {{"scope", std::string(ScopeName(scope))}});
}

absl::StatusOr<ScopeSet> ParseScopes(absl::string_view text) {
  ScopeSet scopes;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const std::optional<Scope> scope = ScopeFromName(name);
    if (!scope) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name.substr(0, 64), "\" is not generate, admin or metrics"));
    }
    scopes.Add(*scope);
  }
  return scopes;
}

// REQUIRES: `line` is not empty.
absl::StatusOr<TokenLine> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the line has ", words.size(), " words, but needs 3: \"sha256-hex tenant scopes\""));
  }
  TokenLine token;
  const bool is_hex = words[0].size() == 2 * token.digest.size() &&
                      std::all_of(words[0].begin(), words[0].end(),
                                  [](unsigned char c) { return absl::ascii_isxdigit(c); });
  // The word may be the token itself, so the message does not show it.
  if (!is_hex) {
    return absl::InvalidArgumentError(absl::StrCat("the first word is not a SHA-256 in ",
                                                   2 * token.digest.size(), " hex digits"));
  }
  const std::string bytes = absl::HexStringToBytes(words[0]);
  std::memcpy(token.digest.data(), bytes.data(), token.digest.size());
  if (!IsTenantName(words[1])) {
    return absl::InvalidArgumentError(absl::StrCat("the tenant has ", words[1].size(),
                                                   " bytes, but must have 1 to ", kMaxTenantBytes,
                                                   " printable bytes"));
  }
  token.tenant = std::string(words[1]);
  QUIRE_ASSIGN_OR_RETURN(token.scopes, ParseScopes(words[2]));
  token.principal = absl::StrCat(
      kTokenPrefix, absl::BytesToHexString(AsText(token.digest).substr(0, kShownDigestBytes)));
  return token;
}

absl::Status FileError(const std::string& path, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("auth.tokens_file: ", path, text));
}

// Returns the number that a comment such as "# tokens: 12" declares, or nullopt for other comments.
absl::StatusOr<std::optional<std::size_t>> ParseDeclaredCount(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kCountPrefix)) return std::optional<std::size_t>();
  std::uint64_t count = 0;
  if (!absl::SimpleAtoi(line, &count) || count > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", kCountPrefix, "\" is not followed by a number up to ", kMaxTokens));
  }
  return std::optional<std::size_t>(count);
}

// Returns an error if the file looks truncated, even if each of its lines is valid.
absl::Status CheckComplete(absl::string_view content, std::size_t tokens,
                           std::optional<std::size_t> count) {
  if (count.has_value() && *count != tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        " has ", tokens, " tokens, but its comment declares \"", kCountPrefix, " ", *count, "\""));
  }
  if (tokens == 0 && !count.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(" has no token; if that is intended, add the line \"", kCountPrefix, " 0\""));
  }
  if (!content.empty() && content.back() != '\n') {
    return absl::InvalidArgumentError(" does not end with a newline and may be incomplete");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenLine>> ParseTokens(const std::string& path,
                                                   absl::string_view content) {
  std::vector<TokenLine> tokens;
  std::set<std::string> known;  // principals
  std::optional<std::size_t> count;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(content, '\n')) {
    ++number;
    const auto error = [&](const absl::Status& status) {
      return FileError(path, absl::StrCat(":", number, ": ", status.message()));
    };
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    if (line[0] == '#') {
      const absl::StatusOr<std::optional<std::size_t>> found = ParseDeclaredCount(line);
      if (!found.ok()) return error(found.status());
      if (found->has_value()) count = *found;
      continue;
    }
    absl::StatusOr<TokenLine> token = ParseLine(line);
    if (!token.ok()) return error(token.status());
    if (!known.insert(token->principal).second) {
      return FileError(path, absl::StrCat(":", number, ": the token is listed twice"));
    }
    if (tokens.size() == kMaxTokens) {
      return FileError(path, absl::StrCat(": more than ", kMaxTokens, " tokens"));
    }
    tokens.push_back(*std::move(token));
  }
  const absl::Status complete = CheckComplete(content, tokens.size(), count);
  if (!complete.ok()) return FileError(path, complete.message());
  return tokens;
}

absl::StatusOr<std::vector<TokenLine>> ReadTokens(const std::string& path) {
  const absl::StatusOr<std::string> content = ReadSmallFile(path, kMaxFileBytes);
  if (!content.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("auth.tokens_file: ", content.status().message()));
  }
  return ParseTokens(path, *content);
}

}  // namespace

struct AuthRules {
  AuthOptions options;
  std::vector<TokenLine> tokens;

  // Compares the token with every line, even after a match, so that the duration reveals no match.
  const TokenLine* Find(absl::string_view token) const {
    const Digest digest = Hash(token);
    const TokenLine* found = nullptr;
    for (const TokenLine& line : tokens) {
      if (CRYPTO_memcmp(line.digest.data(), digest.data(), digest.size()) == 0) found = &line;
    }
    return found;
  }
};

namespace {

absl::StatusOr<Identity> IdentifyByToken(const AuthRules& rules, const Credentials& credentials,
                                         Scope needed) {
  if (credentials.bearer_token.empty()) {
    Identity anonymous{.principal = "", .scopes = rules.options.anonymous_scopes};
    if (anonymous.scopes.Has(needed)) return anonymous;
    return MissingTokenError(
        "the call has no bearer token; send the header \"Authorization: Bearer TOKEN\"");
  }
  const TokenLine* line = rules.Find(credentials.bearer_token);
  if (line == nullptr)
    return InvalidTokenError(
        "the bearer token is unknown; valid tokens are in auth.tokens_file of the server");
  if (!line->scopes.Has(needed)) return MissingScopeError("the token", needed);
  return Identity{.principal = line->principal, .tenant = line->tenant, .scopes = line->scopes};
}

absl::StatusOr<Identity> IdentifyByCertificate(const Credentials& credentials) {
  const std::string& name = credentials.certificate_name;
  if (name.empty())
    return MissingTokenError("the call has no client certificate with a common name");
  if (!IsTenantName(name)) {
    return InvalidTokenError(absl::StrCat("the common name of the certificate has ", name.size(),
                                          " bytes, but a tenant has 1 to ", kMaxTenantBytes,
                                          " printable bytes"));
  }
  return Identity{.principal = absl::StrCat(kCertificatePrefix, name),
                  .tenant = name,
                  .scopes = ScopeSet::All()};
}

absl::StatusOr<Identity> Identify(const AuthRules& rules, const Credentials& credentials,
                                  Scope needed) {
  // The file permissions of the Unix socket authenticate the caller.
  if (needed == Scope::kAdmin && credentials.is_local_socket) {
    return Identity{.principal = std::string(kLocalPrincipal), .scopes = ScopeSet::All()};
  }
  switch (rules.options.mode) {
    case AuthMode::kToken:
      return IdentifyByToken(rules, credentials, needed);
    case AuthMode::kMtls:
      // The HTTP listener for metrics does not request certificates, so metrics are open in this
      // mode.
      if (needed != Scope::kMetrics) return IdentifyByCertificate(credentials);
      break;
    case AuthMode::kNone:
      break;
  }
  return Identity{.principal = "", .scopes = ScopeSet::All()};
}

}  // namespace

Authenticator::Authenticator(std::shared_ptr<const AuthRules> rules) : rules_(std::move(rules)) {}
Authenticator::~Authenticator() = default;

absl::StatusOr<std::shared_ptr<const AuthRules>> Authenticator::Read(const AuthOptions& options) {
  auto rules = std::make_shared<AuthRules>();
  rules->options = options;
  if (options.mode == AuthMode::kToken) {
    QUIRE_ASSIGN_OR_RETURN(rules->tokens, ReadTokens(options.tokens_file));
  }
  return rules;
}

std::vector<NamedFile> Authenticator::Files(const AuthOptions& options) {
  if (options.mode != AuthMode::kToken) return {};
  return {{"auth.tokens_file", options.tokens_file}};
}

absl::StatusOr<std::unique_ptr<Authenticator>> Authenticator::Create(const AuthOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const AuthRules> rules, Read(options));
  return std::unique_ptr<Authenticator>(new Authenticator(std::move(rules)));
}

std::shared_ptr<const AuthRules> Authenticator::rules() const {
  MutexLock lock(&mutex_);
  return rules_;
}

void Authenticator::Apply(std::shared_ptr<const AuthRules> rules) {
  QUIRE_CHECK(rules != nullptr);
  {
    MutexLock lock(&mutex_);
    rules_.swap(rules);
  }
  version_.fetch_add(1, std::memory_order_release);
}

absl::StatusOr<Identity> Authenticator::Authenticate(const Credentials& credentials,
                                                     Scope needed) const {
  const std::shared_ptr<const AuthRules> rules = this->rules();
  QUIRE_ASSIGN_OR_RETURN(Identity identity, Identify(*rules, credentials, needed));
  const std::string& tenant = credentials.tenant_metadata;
  if (!rules->options.trust_tenant_metadata || tenant.empty()) return identity;
  if (!IsTenantName(tenant)) {
    const std::string range = absl::StrCat("1 to ", kMaxTenantBytes, " printable bytes");
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("metadata quire-tenant must be ", range)),
        Reason::kBadParameter,
        {{"field", "quire-tenant"},
         {"value", absl::StrCat(tenant.size(), " bytes")},
         {"range", range}});
  }
  identity.tenant = tenant;
  return identity;
}

bool Authenticator::IsStillAllowed(absl::string_view principal, Scope needed) const {
  const std::shared_ptr<const AuthRules> rules = this->rules();
  if (rules->options.mode != AuthMode::kToken || principal == kLocalPrincipal) return true;
  if (principal.empty()) return rules->options.anonymous_scopes.Has(needed);
  for (const TokenLine& line : rules->tokens) {
    if (line.principal == principal) return line.scopes.Has(needed);
  }
  return false;
}

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

absl::Status RevokedError() {
  return InvalidTokenError("the token was revoked while the call ran");
}

}  // namespace quire::server
