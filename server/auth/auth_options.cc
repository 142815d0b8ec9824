#include "server/auth/auth_options.h"

namespace quire::server {

absl::string_view ScopeName(Scope scope) {
  switch (scope) {
    case Scope::kGenerate:
      return "generate";
    case Scope::kAdmin:
      return "admin";
    case Scope::kMetrics:
      return "metrics";
  }
  return "";
}

std::optional<Scope> ScopeFromName(absl::string_view name) {
  for (const Scope scope : {Scope::kGenerate, Scope::kAdmin, Scope::kMetrics}) {
    if (name == ScopeName(scope)) return scope;
  }
  return std::nullopt;
}

}  // namespace quire::server
