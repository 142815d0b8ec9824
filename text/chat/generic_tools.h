#pragma once

// Tool calling for chat templates that do not render tools (chat.tool_format: generic). Tools,
// earlier calls and results are written into the content of system, user and assistant messages.
//
// Place:      part of chat_template.h. The format `generic` of text/tools/tool_format.h reads the
//             calls of the answer (docs/structured_output.md).
// Invariants: the messages that are returned have the roles of the conversation without `tool`, and
//             no tool_calls. Results of successive `tool` messages share one user message, so that
//             user and assistant still alternate where they did.
// Threads:    pure.

#include <string>

#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"

namespace quire::text {

// The source of a Jinja template that renders the instructions from the variable `tools`.
absl::string_view GenericToolsSource();

// Returns the conversation without tools, tool messages and tool calls. If there are
// `instructions`, they become the end of a leading system or developer message, or a system message
// of their own. If `has_system_role` is false, they become the beginning of the first user message.
ChatInput WithGenericTools(ChatInput chat, const std::string& instructions, bool has_system_role);

}  // namespace quire::text
