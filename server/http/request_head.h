#pragma once

// Checks what Beast's parser does not check in the head of a request: the request target, the
// header Host, and transfer and content codings (RFC 9110 and RFC 9112).
//
// Place:   between Beast's parser and HttpRequest, called by HttpSession.
// Threads: any; no state.

#include <boost/beast/http/message.hpp>

#include "absl/status/status.h"
#include "server/http/http_message.h"

namespace quire::server {

struct ConnectionTraits {
  bool has_tls = false;
  bool is_chunked = false;  // the parser reads the body of this request in chunks
};

// Fills method, path, query and headers of `request`. If the target is in absolute form, its host
// and port replace the header Host, and an absent path becomes "/" ("*" for OPTIONS). Headers are
// filled on failure too.
//
// Returns INVALID_ARGUMENT with BAD_REQUEST for a target, Host or Transfer-Encoding that a server
// has to refuse. Returns UNIMPLEMENTED with FEATURE_UNSUPPORTED for CONNECT and for transfer
// codings other than chunked.
absl::Status ReadRequestHead(const boost::beast::http::request_header<>& head,
                             const ConnectionTraits& traits, HttpRequest* request);

// Returns OK if Content-Encoding is absent or has only `identity`, that is, if the body is not
// compressed. Otherwise returns INVALID_ARGUMENT with UNSUPPORTED_ENCODING.
absl::Status CheckContentEncoding(const HttpRequest& request);

}  // namespace quire::server
