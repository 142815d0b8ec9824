#pragma once

// Whom a request believes to speak to: defence against DNS rebinding.
//
// A page of another site can make its own name lead to 127.0.0.1 and then read what a listener on
// loopback answers, since for the browser it is still that site. The header Host tells: it has the
// name that the page was opened with.
//
// Place:   shared by the handlers of both HTTP listeners, where being on loopback is all that
//          guards them. Not for other addresses: those are asked by names, as of a container.
// Threads: any.

#include <optional>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace quire::server {

// An address, or this machine's own name (localhost and below): another name could be made to lead
// here by the owner of that name.
bool IsLocalName(absl::string_view host);

// The value of the header Host, or the part of an Origin behind its scheme: `host`, `host:port`,
// `[v6]` or `[v6]:port`.
struct Authority {
  absl::string_view host;  // without brackets, not empty
  std::optional<int> port;
};
// Returns nothing when `text` is not a host and port of RFC 3986, section 3.2, with a host that is
// not empty (RFC 9110, section 4.2.1) and a port below 65536.
std::optional<Authority> ParseAuthority(absl::string_view text);

// Whether the header Host is absent or IsLocalName, with any port.
bool NamesThisMachine(const HttpRequest& request);

// Whether `origin` is a page at `port` of the host that the request names itself, and that host is
// IsLocalName.
bool IsOwnPage(absl::string_view origin, const HttpRequest& request, int port);

// What operators' pages answer when it does not.
HttpAnswer WrongHostAnswer();

}  // namespace quire::server
