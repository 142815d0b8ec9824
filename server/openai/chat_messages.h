#pragma once

// `messages`, `tools`, `tool_choice` and the template's variables of a chat call ->
// quire.v1.ChatPrompt.
//
// Place:      part of openai_request.h.
// Invariants: as there. Content parts stay a list; other types than text are refused, not dropped.
// Threads:    any.

#include "absl/status/status.h"
#include "quire/v1/chat.pb.h"
#include "server/openai/json_fields.h"

namespace quire::server {

// `bytes` are those of the body: parameters of tools keep the order of their keys.
absl::Status ReadChatPrompt(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat);

}  // namespace quire::server
