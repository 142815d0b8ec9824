#pragma once

// Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}} with the
// HTTP status and reason of the table in base/error_reason.h.
//
// Place:      below everything in server/openai.
// Invariants: `code` is the reason; `param` is the field as this API names it.
// Threads:    any.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/api/status_mapping.h"
#include "server/http/http_message.h"
#include "server/openai/field_names.h"

namespace quire::server {

// What the HTTP side itself refuses, with the HTTP status of the reason.
HttpAnswer OpenAiError(Reason reason, absl::string_view message, absl::string_view param = "");

// `names` are those of the request; fields of the gRPC API appear in neither `param` nor the
// message. REQUIRES: !status.ok().
HttpAnswer OpenAiError(const absl::Status& status, const FieldNames& names = {});

// Answers that HttpServer gives itself, such as to a body that is too large.
HttpAnswer RefuseAsOpenAi(Reason reason, absl::string_view message);

}  // namespace quire::server
