#pragma once

// A conversation as plain values: the input of chat templates. The server fills it in from a
// request.

#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace quire::text {

struct ChatToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments_json = {};  // empty: no arguments
};

// Templates see an empty field as undefined, except for role and content.
struct ChatMessage {
  std::string role = {};
  std::string content = {};
  std::string name = {};
  std::vector<ChatToolCall> tool_calls = {};
  std::string tool_call_id = {};
  std::string reasoning_content = {};
  // The text parts, if the content was given as a list of parts; `content` is then empty.
  std::vector<std::string> parts = {};
};

// Returns the content as one string; parts are joined by newlines.
inline std::string ContentText(const ChatMessage& message) {
  return message.parts.empty() ? message.content : absl::StrJoin(message.parts, "\n");
}

struct ChatTool {
  std::string name = {};
  std::string description = {};      // empty: none
  std::string parameters_json = {};  // JSON Schema; empty: none
  bool strict = false;               // calls of the tool must match parameters_json
  // The tool as the client wrote it, including the fields above. The template gets this JSON
  // unchanged, or the fields above if this field is empty.
  std::string json = {};
};

// All text is UTF-8.
struct ChatInput {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatTool> tools = {};
  std::string template_name = {};       // empty: the default
  std::string template_text = {};       // replaces the templates of the model; empty: none
  std::string template_vars_json = {};  // an object; empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

}  // namespace quire::text
