#include "tools/quire/address.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quire::client {
namespace {

// Schemes of gRPC targets, which gRPC parses itself.
constexpr absl::string_view kGrpcSchemes[] = {
    "unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "xds:"};

absl::Status Invalid(absl::string_view text, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" ", problem, "; write HOST:PORT or unix:PATH"));
}

}  // namespace

absl::StatusOr<ServerAddress> ParseAddress(absl::string_view text, int default_port) {
  const absl::string_view whole = text;
  if (text.empty()) return Invalid(whole, "is empty");
  if (absl::StartsWith(text, "/")) return ServerAddress{absl::StrCat("unix:", text)};
  for (const absl::string_view scheme : kGrpcSchemes) {
    if (absl::StartsWith(text, scheme)) return ServerAddress{std::string(text)};
  }
  ServerAddress address;
  const std::size_t scheme_end = text.find("://");
  if (scheme_end != absl::string_view::npos) {
    const absl::string_view scheme = text.substr(0, scheme_end);
    address.needs_tls = scheme == "https" || scheme == "grpcs";
    if (!address.needs_tls && scheme != "http" && scheme != "grpc") {
      return Invalid(whole, absl::StrCat("has the unknown scheme ", scheme));
    }
    text.remove_prefix(scheme_end + 3);
    absl::ConsumeSuffix(&text, "/");
  }
  if (absl::StrContains(text, '/')) return Invalid(whole, "has a path, which gRPC does not use");
  // Without brackets, several colons are an IPv6 address without a port.
  const bool is_bare_ipv6 =
      !absl::StartsWith(text, "[") && std::count(text.begin(), text.end(), ':') > 1;
  const std::size_t colon = is_bare_ipv6 ? absl::string_view::npos : text.rfind(':');
  const bool has_port = colon != absl::string_view::npos && !absl::EndsWith(text, "]");
  const absl::string_view host = has_port ? text.substr(0, colon) : text;
  if (host.empty()) return Invalid(whole, "has no host");
  int port = default_port;
  if (has_port && (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535)) {
    return Invalid(whole, "has a port that is not a number from 1 to 65535");
  }
  if (port == 0) return Invalid(whole, "has no port");
  address.target =
      is_bare_ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
  return address;
}

}  // namespace quire::client
