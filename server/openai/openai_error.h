#pragma once

// Errors of the HTTP APIs: an HTTP status and a JSON body in the format of one API. OpenAI's format
// is {"error": {"message", "type", "param", "code"}}.
//
// Place:      below everything in server/openai and server/dialects.
// Invariants: `code` is OpenAI's where clients act on it (context_length_exceeded, invalid_api_key,
//             rate_limit_exceeded, ...), else the reason of base/error_reason.h in lower case.
//             `param` is the field's name in the client's body. Only server defects and temporary
//             states such as loading have 5xx statuses, because clients retry these.
// Threads:    any.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/status_mapping.h"
#include "server/http/http_message.h"
#include "server/openai/field_names.h"

namespace quire::server {

struct ApiError {
  int http_status = 500;
  std::string message;
  std::string type;   // OpenAI's: invalid_request_error, rate_limit_error, server_error, ...
  std::string param;  // may be empty
  std::string code;
  std::string request_id;  // empty before the call has a request id
};

// Writes the body of an error in the format of one API.
using WriteErrorBody = std::string (*)(const ApiError& error);

std::string OpenAiErrorBody(const ApiError& error);

// Returns an error of the HTTP layer, with the HTTP status of `reason`.
HttpAnswer OpenAiError(Reason reason, absl::string_view message, absl::string_view param = "",
                       WriteErrorBody write = &OpenAiErrorBody);

// Converts an error of the lower layers. `names` maps the field names of the request, so that the
// returned `param` and message use the client's names instead of those of the gRPC API. REQUIRES:
// !status.ok().
HttpAnswer OpenAiError(const absl::Status& status, const FieldNames& names = {},
                       WriteErrorBody write = &OpenAiErrorBody, absl::string_view request_id = "");

}  // namespace quire::server
