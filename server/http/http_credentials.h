#pragma once

// Reads the credentials of a caller over HTTP: the headers authorization and quire-tenant, and the
// client certificate of the connection.
//
// Place:   shared by the handlers of both HTTP listeners.
// Threads: any.

#include "server/auth/authenticator.h"
#include "server/http/http_message.h"

namespace quire::server {

inline Credentials ReadCredentials(const HttpRequest& request) {
  return {.bearer_token = std::string(BearerToken(request.Header("authorization"))),
          .certificate_name = request.certificate_name,
          .tenant_metadata = std::string(request.Header("quire-tenant")),
          .is_local_socket = false};
}

}  // namespace quire::server
