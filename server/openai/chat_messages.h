#pragma once

// Converts `messages`, `tools`, `tool_choice`, the template and its variables to
// quire.v1.ChatPrompt. Also reads `functions` and `function_call`, the older spellings of `tools`
// and `tool_choice`. Tools that tool_choice does not allow are omitted.
//
// Place:      called by the readers of bodies, such as openai_request.cc.
// Invariants: the invariants of openai_request.h hold. Content parts stay a list. Parts that are
//             not text are refused, not ignored.
// Threads:    any.

#include <string>

#include "absl/status/statusor.h"
#include "quire/v1/chat.pb.h"
#include "server/openai/field_names.h"
#include "server/openai/json_fields.h"

namespace quire::server {

// `bytes` is the body, from which tools are copied unchanged. Records the client's index of each
// tool of `chat` in `names`, for error messages.
absl::Status ReadChatPrompt(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat,
                            FieldNames* names);

// Sets tool_choice if `choice` is none, auto or required. Returns false for all other values.
bool SetToolChoiceMode(const formats::JsonValue& choice, v1::ChatPrompt* chat);

// Reads one of OpenAI's reasoning efforts, which range from none to max.
absl::StatusOr<std::string> ReadReasoningEffort(const formats::JsonValue& value);

}  // namespace quire::server
