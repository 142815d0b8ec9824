#pragma once

// `messages`, `tools`, `tool_choice` and the template's variables of a chat call ->
// quire.v1.ChatPrompt. Tools that tool_choice does not allow are left out.
//
// Place:      part of openai_request.h.
// Invariants: as there. Content parts stay a list; other types than text are refused, not dropped.
// Threads:    any.

#include "absl/status/status.h"
#include "quire/v1/chat.pb.h"
#include "server/openai/field_names.h"
#include "server/openai/json_fields.h"

namespace quire::server {

// `bytes` are those of the body, since tools are passed on as they were sent. `names` gets what the
// client calls the fields that are read.
absl::Status ReadChatPrompt(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat,
                            FieldNames* names);

}  // namespace quire::server
