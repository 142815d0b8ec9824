#include "server/http/http_host.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"

namespace quire::server {
namespace {

// Returns true for a non-empty reg-name of RFC 3986, section 3.2.2, which may be an IPv4 address.
bool IsHostName(absl::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '%') {
      if (i + 2 >= text.size() || !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) ||
          !absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
        return false;
      }
      i += 2;
    } else if (!absl::ascii_isalnum(byte) && !absl::StrContains("-._~!$&'()*+,;=", text[i])) {
      return false;
    }
  }
  return !text.empty();
}

bool IsIpv6(absl::string_view text) {
  in6_addr address = {};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

}  // namespace

bool IsLocalName(absl::string_view host) {
  const std::string text = absl::AsciiStrToLower(host);
  in6_addr address = {};  // large enough for both
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1 || text == "localhost" ||
         absl::EndsWith(text, ".localhost");
}

std::optional<Authority> ParseAuthority(absl::string_view text) {
  Authority authority;
  absl::string_view rest;
  if (absl::ConsumePrefix(&text, "[")) {
    const std::size_t bracket = text.find(']');
    if (bracket == text.npos) return std::nullopt;
    authority.host = text.substr(0, bracket);
    if (!IsIpv6(authority.host)) return std::nullopt;
    rest = text.substr(bracket + 1);
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    authority.host = text.substr(0, colon);
    if (!IsHostName(authority.host)) return std::nullopt;
    rest = text.substr(colon);
  }
  if (rest.empty() || rest == ":") return authority;
  int port = 0;
  if (!absl::ConsumePrefix(&rest, ":") || rest.size() > 5 ||
      rest.find_first_not_of("0123456789") != rest.npos || !absl::SimpleAtoi(rest, &port) ||
      port > 65535) {
    return std::nullopt;
  }
  authority.port = port;
  return authority;
}

bool IsHostLocal(const HttpRequest& request) {
  const absl::string_view host = request.Header("host");
  if (host.empty()) return true;
  const std::optional<Authority> authority = ParseAuthority(host);
  return authority.has_value() && IsLocalName(authority->host);
}

bool IsOwnPage(absl::string_view origin, const HttpRequest& request, int port) {
  int default_port = 80;
  if (absl::ConsumePrefix(&origin, "https://")) {
    default_port = 443;
  } else if (!absl::ConsumePrefix(&origin, "http://")) {
    return false;
  }
  const std::optional<Authority> page = ParseAuthority(origin);
  const std::optional<Authority> here = ParseAuthority(request.Header("host"));
  return page.has_value() && here.has_value() && page->port.value_or(default_port) == port &&
         absl::EqualsIgnoreCase(page->host, here->host) && IsLocalName(page->host);
}

HttpAnswer WrongHostAnswer() {
  return {.status = 403,
          .body = "without authentication the header Host must be an IP address or localhost\n"};
}

}  // namespace quire::server
