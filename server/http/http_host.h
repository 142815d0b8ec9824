#pragma once

// Checks the header Host as a defence against DNS rebinding.
//
// A web site can resolve its own name to 127.0.0.1 and then read the answers of a listener on
// loopback, because for the browser they have the origin of that site. The header Host shows it: it
// contains the name with which the page was opened.
//
// Place:   used by the handlers of both HTTP listeners if nothing but their loopback address
//          protects them. It is not used for other addresses, which clients may reach by any name,
//          for example that of a container.
// Threads: any.

#include <optional>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace quire::server {

// Returns true for an IP address, localhost, and names below localhost. The owner of any other name
// could resolve it to this machine.
bool IsLocalName(absl::string_view host);

// The value of the header Host, or the part of an Origin behind its scheme: `host`, `host:port`,
// `[v6]` or `[v6]:port`.
struct Authority {
  absl::string_view host;  // without brackets, not empty
  std::optional<int> port;
};
// Returns nothing unless `text` is a host and port of RFC 3986, section 3.2, with a non-empty host
// (RFC 9110, section 4.2.1) and a port below 65536.
std::optional<Authority> ParseAuthority(absl::string_view text);

// Returns true if the header Host is absent, or IsLocalName with any port.
bool NamesThisMachine(const HttpRequest& request);

// Returns true if `origin` has the host of the request's header Host and the port `port`, and that
// host is IsLocalName.
bool IsOwnPage(absl::string_view origin, const HttpRequest& request, int port);

// Returns the answer of the operators' pages to a request whose Host names another machine.
HttpAnswer WrongHostAnswer();

}  // namespace quire::server
