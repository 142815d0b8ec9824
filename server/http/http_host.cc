#include "server/http/http_host.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace quire::server {

bool IsLocalName(absl::string_view host) {
  const std::string text = absl::AsciiStrToLower(host);
  in6_addr address = {};  // large enough for both
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1 || text == "localhost" ||
         absl::EndsWith(text, ".localhost");
}

bool NamesThisMachine(const HttpRequest& request) {
  absl::string_view host = request.Header("host");
  if (host.empty()) return true;
  const std::size_t colon = host.rfind(':');
  const std::size_t bracket = host.rfind(']');
  if (bracket != host.npos) {
    return host[0] == '[' && IsLocalName(host.substr(1, bracket - 1));
  }
  return IsLocalName(host.substr(0, colon));
}

HttpAnswer WrongHostAnswer() {
  return {.status = 403,
          .body = "without authentication a loopback address is asked by address or as localhost "
                  "only\n"};
}

}  // namespace quire::server
