#include "text/chat/generic_tools.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"

namespace quire::text {
namespace {

// Appends `text`, with `separator` before it unless one of the two texts is empty.
void Append(absl::string_view text, absl::string_view separator, std::string* to) {
  absl::StrAppend(to, to->empty() || text.empty() ? "" : separator, text);
}

// Joins content parts to one text.
void ToText(ChatMessage* message) {
  message->content = ContentText(*message);
  message->parts.clear();
}

// Appends the calls of an assistant message to its content, in the format that the model writes.
void WriteCalls(ChatMessage* message) {
  if (message->tool_calls.empty()) return;
  ToText(message);
  for (const ChatToolCall& call : message->tool_calls) {
    const absl::string_view arguments = call.arguments_json;
    Append(absl::StrCat("<tool_call>\n{\"name\": ", JsonQuoted(call.name), ", \"arguments\": ",
                        arguments.empty() ? "{}" : arguments, "}\n</tool_call>"),
           "\n", &message->content);
  }
  message->tool_calls.clear();
}

}  // namespace

absl::string_view GenericToolsSource() {
  return "You can call the tools below. Each line describes one of them as a JSON object.\n"
         "<tools>\n"
         "{% for tool in tools %}{{ tool.function | tojson }}\n"
         "{% endfor %}</tools>\n"
         "\n"
         "To call a tool, answer with a JSON object that holds the tool's name and its arguments, "
         "between <tool_call> and </tool_call>:\n"
         "<tool_call>\n"
         "{\"name\": \"NAME\", \"arguments\": {\"ARGUMENT\": \"VALUE\"}}\n"
         "</tool_call>\n"
         "Write one such block for each call. The next message then holds the results, in the "
         "order of the calls, each between <tool_response> and </tool_response>. Answer in plain "
         "text when no tool is needed.";
}

ChatInput WithGenericTools(ChatInput chat, const std::string& instructions, bool has_system_role) {
  std::vector<ChatMessage> messages;
  bool continues_results = false;  // the last of `messages` consists of results
  for (ChatMessage& message : chat.messages) {
    if (message.role == "tool") {
      const std::string result =
          absl::StrCat("<tool_response>\n", ContentText(message), "\n</tool_response>");
      if (!continues_results) messages.push_back({.role = "user"});
      Append(result, "\n", &messages.back().content);
      continues_results = true;
      continue;
    }
    WriteCalls(&message);
    if (continues_results && message.role == "user" && message.name.empty()) {
      Append(ContentText(message), "\n\n", &messages.back().content);
    } else {
      messages.push_back(std::move(message));
    }
    continues_results = false;
  }
  chat.messages = std::move(messages);
  chat.tools.clear();
  if (instructions.empty()) return chat;
  const auto user = std::ranges::find(chat.messages, "user", &ChatMessage::role);
  if (!has_system_role && user != chat.messages.end()) {
    const std::string content = ContentText(*user);
    user->parts.clear();
    user->content = instructions;
    Append(content, "\n\n", &user->content);
    return chat;
  }
  const bool starts_with_system =
      !chat.messages.empty() &&
      (chat.messages.front().role == "system" || chat.messages.front().role == "developer");
  if (!starts_with_system) chat.messages.insert(chat.messages.begin(), {.role = "system"});
  ToText(&chat.messages.front());
  Append(instructions, "\n\n", &chat.messages.front().content);
  return chat;
}

}  // namespace quire::text
