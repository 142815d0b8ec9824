#pragma once

// A conversation as plain values.
//
// Place:      between the server, which makes it of a request, and the templates.
// Threads:    values.
// Lifetime:   values.

#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace quire::text {

struct ChatToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments_json = {};  // empty: no arguments
};

// Absent fields are not there for the template either, but for role and content.
struct ChatMessage {
  std::string role = {};
  std::string content = {};
  std::string name = {};
  std::vector<ChatToolCall> tool_calls = {};
  std::string tool_call_id = {};
  std::string reasoning_content = {};
  // Texts of content that was given as a list of parts; `content` is empty then.
  std::vector<std::string> parts = {};
};

// The content as one string: parts are joined by newlines.
inline std::string ContentText(const ChatMessage& message) {
  return message.parts.empty() ? message.content : absl::StrJoin(message.parts, "\n");
}

struct ChatTool {
  std::string name = {};
  std::string description = {};      // empty: none
  std::string parameters_json = {};  // JSON Schema; empty: none
  bool strict = false;               // calls of it keep parameters_json
  // The whole tool as the client wrote it, the fields above included. The template then gets it
  // unchanged; empty: the template gets the fields above.
  std::string json = {};
};

// All text is UTF-8.
struct ChatInput {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatTool> tools = {};
  std::string template_name = {};       // empty: the default
  std::string template_vars_json = {};  // an object; empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

}  // namespace quire::text
