#pragma once

// Errors in OpenAI's format: {"error": {"message", "type", "param", "code"}}, with the HTTP status
// and the reason of base/error_reason.h.
//
// Place:      below everything in server/openai.
// Invariants: `code` is the reason; `param` is the field's name in this API.
// Threads:    any.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/status_mapping.h"
#include "server/http/http_message.h"
#include "server/openai/field_names.h"

namespace quire::server {

// Returns an error of the HTTP side, with the HTTP status of the reason.
HttpAnswer OpenAiError(Reason reason, absl::string_view message, absl::string_view param = "");

// `names` are the field names of the request. Neither `param` nor the message has names of the gRPC
// API. REQUIRES: !status.ok().
HttpAnswer OpenAiError(const absl::Status& status, const FieldNames& names = {});

// Returns an error of HttpServer itself, such as a body that is too large.
HttpAnswer RefuseAsOpenAi(Reason reason, absl::string_view message);

}  // namespace quire::server
