#pragma once

// Converts quire.v1.ChatPrompt to text::ChatInput. Checks every range of docs/api.md; errors name
// the field by its wire path.
//
// Place:      used by the request translator; RenderChat and Tokenize use it too.
// Threads:    any.

#include "absl/status/statusor.h"
#include "text/chat/chat_input.h"
#include "text/chat/jinja/json.h"

namespace quire::v1 {
class ChatPrompt;
}

namespace quire::server {

// Returns INVALID_ARGUMENT / BAD_CHAT_TEMPLATE_INPUT on errors. `limits` apply to the template
// variables here; the renderer applies them to the other JSON documents.
absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatPrompt& message,
                                            const text::jinja::JsonLimits& limits);

}  // namespace quire::server
