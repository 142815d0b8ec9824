#pragma once

// Checks the header Host as a defence against DNS rebinding.
//
// The owner of a web site can make its name resolve to 127.0.0.1. For the browser, answers of a
// listener on loopback then have the origin of that site, so the site's scripts can read them. The
// header Host reveals the attack, because it contains the name of the site.
//
// Place:   used by the handlers of both HTTP listeners if only a loopback address protects them.
//          Other addresses are not checked, because clients may reach them by any name, for example
//          the name of a container.
// Threads: any.

#include <optional>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace quire::server {

// Returns true for an IP address, localhost, and names below localhost. The owner of any other name
// could resolve it to this machine.
bool IsLocalName(absl::string_view host);

// The value of the header Host, or the part of an Origin after its scheme: `host`, `host:port`,
// `[v6]` or `[v6]:port`.
struct Authority {
  absl::string_view host;  // without brackets, not empty
  std::optional<int> port;
};
// Parses a host and port of RFC 3986, section 3.2. Returns nullopt if the syntax is wrong, the host
// is empty (RFC 9110, section 4.2.1), or the port exceeds 65535.
std::optional<Authority> ParseAuthority(absl::string_view text);

// Returns true if the header Host is absent or its host is a local name, with any port.
bool IsHostLocal(const HttpRequest& request);

// Returns true if `origin` has the scheme http or https, the port `port`, and a local host name.
// The header Host of `request` must have the same host name.
bool IsOwnPage(absl::string_view origin, const HttpRequest& request, int port);

// Returns the 403 answer to a request whose header Host is not local.
HttpAnswer WrongHostAnswer();

}  // namespace quire::server
