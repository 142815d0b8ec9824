#pragma once

// Converts quire.v1.ChatPrompt to text::ChatInput. Checks the value ranges that docs/api.md
// documents. Errors name the field by its wire path.
//
// Place:      used by request_translator.h and by the calls of tokenization.h.
// Threads:    any.

#include "absl/status/statusor.h"
#include "text/chat/chat_input.h"
#include "text/chat/jinja/json.h"

namespace quire::v1 {
class ChatPrompt;
}

namespace quire::server {

// Errors are INVALID_ARGUMENT / BAD_CHAT_TEMPLATE_INPUT. Enforces all `limits` on the template
// variables, but only the limits of depth and nodes on tool_json. The renderer enforces `limits` on
// the JSON of tools and tool calls when it renders them.
absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatPrompt& message,
                                            const text::jinja::JsonLimits& limits);

}  // namespace quire::server
