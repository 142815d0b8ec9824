#pragma once

// quire.v1.ChatPrompt -> text::ChatInput: every range of docs/api.md checked, the bad field named
// by its wire path.
//
// Place:      beside the request translator; RenderChat and Tokenize use it too.
// Threads:    any.

#include "absl/status/statusor.h"
#include "text/chat/chat_input.h"

namespace quire::v1 {
class ChatPrompt;
}

namespace quire::server {

// Errors: INVALID_ARGUMENT / BAD_CHAT_TEMPLATE_INPUT. What JSON documents hold is seen when they
// are rendered.
absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatPrompt& message);

}  // namespace quire::server
