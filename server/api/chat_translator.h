#pragma once

// quire.v1.ChatPrompt -> text::ChatInput: every range of docs/api.md checked, the bad field named
// by its wire path.
//
// Place:      beside the request translator; RenderChat and Tokenize use it too.
// Threads:    any.

#include "absl/status/statusor.h"
#include "text/chat/chat_input.h"
#include "text/chat/jinja/json.h"

namespace quire::v1 {
class ChatPrompt;
}

namespace quire::server {

// Errors: INVALID_ARGUMENT / BAD_CHAT_TEMPLATE_INPUT. The limits are those of the variables; what
// other JSON documents hold is seen when they are rendered.
absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatPrompt& message,
                                            const text::jinja::JsonLimits& limits);

}  // namespace quire::server
