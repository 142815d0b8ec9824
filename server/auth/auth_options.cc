#include "server/auth/auth_options.h"

namespace quire::server {

absl::string_view ScopeName(Scope scope) {
  constexpr absl::string_view kNames[kNumScopes] = {"generate", "admin", "metrics"};
  return kNames[static_cast<std::size_t>(scope)];
}

std::optional<Scope> ScopeFromName(absl::string_view name) {
  for (const Scope scope : {Scope::kGenerate, Scope::kAdmin, Scope::kMetrics}) {
    if (name == ScopeName(scope)) return scope;
  }
  return std::nullopt;
}

}  // namespace quire::server
