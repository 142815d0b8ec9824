#pragma once

// Reads the credentials of a caller over HTTP. The token is the bearer token of the header
// authorization, or else the value of x-api-key. The tenant comes from the header quire-tenant, and
// the certificate name from the connection.
//
// Place:   shared by the handlers of both HTTP listeners.
// Threads: any.

#include "server/auth/authenticator.h"
#include "server/http/http_message.h"

namespace quire::server {

inline Credentials ReadCredentials(const HttpRequest& request) {
  absl::string_view token = BearerToken(request.Header("authorization"));
  if (token.empty()) token = request.Header("x-api-key");
  return {.bearer_token = std::string(token),
          .certificate_name = request.certificate_name,
          .tenant_metadata = std::string(request.Header("quire-tenant")),
          .is_local_socket = false};
}

}  // namespace quire::server
