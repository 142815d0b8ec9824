#pragma once

// Tool calling for chat templates that do not render tools (chat.tool_format: generic). Tools,
// earlier tool calls and tool results are written into the content of system, user and assistant
// messages.
//
// Place:      part of chat_template.h. docs/structured_output.md describes it. The format `generic`
//             of text/tools/tool_format.h parses the calls in the output.
// Invariants: returned messages have no role `tool` and no tool_calls. Successive `tool` messages,
//             and a `user` message without a name that follows them, become one user message, so
//             that user and assistant still alternate.
// Threads:    pure functions.

#include <string>

#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"

namespace quire::text {

// Returns the source of a Jinja template that renders the instructions from the variable `tools`.
absl::string_view GenericToolsSource();

// Returns the conversation without tools, tool messages and tool calls. Non-empty `instructions`
// are appended to a leading system or developer message, or become a new system message. If
// `has_system_role` is false, they are put before the first user message instead.
ChatInput WithGenericTools(ChatInput chat, const std::string& instructions, bool has_system_role);

}  // namespace quire::text
