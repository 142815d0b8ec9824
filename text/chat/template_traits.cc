#include "text/chat/template_traits.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace quire::text {
namespace {

// Words that no template contains.
constexpr absl::string_view kFirst = "qzfirstprobe";
constexpr absl::string_view kSecond = "qzsecondprobe";
constexpr absl::string_view kArgumentName = "qzargument";
constexpr absl::string_view kArgumentValue = "qzvalue";
constexpr absl::string_view kArguments = R"({"qzargument": "qzvalue"})";
constexpr absl::string_view kToolName = "qz_tool";
constexpr absl::string_view kCallId = "call00001";  // Mistral's templates require nine characters

ChatMessage Message(absl::string_view role, absl::string_view content) {
  return {.role = std::string(role), .content = std::string(content)};
}

ChatMessage CallMessage() {
  ChatMessage message = Message("assistant", "");
  message.tool_calls.push_back({.id = std::string(kCallId),
                                .name = std::string(kToolName),
                                .arguments_json = std::string(kArguments)});
  return message;
}

ChatMessage ToolMessage(absl::string_view content) {
  ChatMessage message = Message("tool", content);
  message.name = std::string(kToolName);
  message.tool_call_id = std::string(kCallId);
  return message;
}

ChatTool ProbeTool() {
  return {.name = std::string(kToolName),
          .description = "Returns a value",
          .parameters_json = R"({"type": "object", "properties": {}})"};
}

// Returns the conversation without tools, and the conversation with one tool. Some templates print
// calls only if there are tools, and others reject tools.
std::vector<ChatInput> MakeInputsWithAndWithoutTools(std::vector<ChatMessage> messages) {
  ChatInput plain;
  plain.messages = std::move(messages);
  ChatInput with_tools = plain;
  with_tools.tools.push_back(ProbeTool());
  return {std::move(plain), std::move(with_tools)};
}

bool Prints(const absl::StatusOr<std::string>& text, absl::string_view word) {
  return text.ok() && absl::StrContains(*text, word);
}

// Returns whether the word follows the quoted key "text". The template has then printed a list of
// parts as one value.
bool IsPrintedAsPart(absl::string_view text, absl::string_view word) {
  const absl::string_view before = text.substr(0, text.find(word));
  const std::size_t end = before.find_last_not_of("'\"\\: ");
  if (end == absl::string_view::npos) return false;
  const absl::string_view separator = before.substr(end + 1);
  return absl::EndsWith(before.substr(0, end + 1), "text") &&
         separator.find_first_of("'\"") != absl::string_view::npos;
}

bool PrintsPart(const absl::StatusOr<std::string>& text, absl::string_view word) {
  return Prints(text, word) && !IsPrintedAsPart(*text, word);
}

void ProbeArguments(const ProbeRenderer& render, TemplateTraits* traits) {
  const std::vector<std::vector<ChatMessage>> conversations = {
      {Message("user", kFirst), CallMessage(), ToolMessage(kSecond)},
      {Message("user", kFirst), CallMessage()},
      {Message("user", kFirst), CallMessage(), ToolMessage(kSecond), Message("assistant", kSecond),
       Message("user", kSecond)}};
  for (const std::vector<ChatMessage>& messages : conversations) {
    for (const ChatInput& chat : MakeInputsWithAndWithoutTools(messages)) {
      TemplateTraits form = *traits;
      form.takes_mapping_arguments = true;
      form.takes_text_arguments = false;
      const absl::StatusOr<std::string> with_mapping = render(chat, form);
      std::swap(form.takes_mapping_arguments, form.takes_text_arguments);
      const absl::StatusOr<std::string> with_text = render(chat, form);
      const bool takes_mapping =
          Prints(with_mapping, kArgumentName) && Prints(with_mapping, kArgumentValue);
      const bool takes_text = Prints(with_text, kArguments);
      if (!takes_mapping && !takes_text) continue;
      traits->takes_mapping_arguments = takes_mapping;
      traits->takes_text_arguments = takes_text;
      return;
    }
  }
}

// A conversation in which the content of messages[at] is probed. `form` is the field of
// TemplateTraits for that message's role.
struct ContentProbe {
  std::vector<ChatMessage> messages;
  std::size_t at;
  ContentForm TemplateTraits::*form;
};

std::optional<ContentForm> FindContentForm(const ProbeRenderer& render, ChatInput chat,
                                           const ContentProbe& probe, TemplateTraits traits) {
  const auto print = [&](ContentForm form) {
    traits.*probe.form = form;
    return render(chat, traits);
  };
  ChatMessage& message = chat.messages[probe.at];
  message.content = std::string(kFirst);
  const bool text = Prints(print(ContentForm::kText), kFirst);
  const bool one_part = PrintsPart(print(ContentForm::kParts), kFirst);
  message.content.clear();
  message.parts = {std::string(kFirst), std::string(kSecond)};
  const absl::StatusOr<std::string> both = print(ContentForm::kParts);
  const bool prints_parts = PrintsPart(both, kFirst) && PrintsPart(both, kSecond);
  if (text) return prints_parts ? ContentForm::kEither : ContentForm::kText;
  if (prints_parts) return ContentForm::kParts;
  if (one_part) return ContentForm::kOnePart;
  return std::nullopt;
}

void ProbeContent(const ProbeRenderer& render, const ContentProbe& probe, TemplateTraits* traits) {
  for (const ChatInput& chat : MakeInputsWithAndWithoutTools(probe.messages)) {
    const std::optional<ContentForm> form = FindContentForm(render, chat, probe, *traits);
    if (!form) continue;
    traits->*probe.form = *form;
    return;
  }
}

void ProbeTools(const ProbeRenderer& render, TemplateTraits* traits) {
  ChatInput chat;
  chat.messages = {Message("user", "hi")};
  const absl::StatusOr<bool> without_system = PrintsTools(render, chat, *traits);
  chat.messages = {Message("system", kFirst), Message("user", "hi")};
  const absl::StatusOr<bool> with_system = PrintsTools(render, chat, *traits);
  traits->prints_tools = without_system.value_or(false) && with_system.value_or(false);
  traits->has_system_role = Prints(render(chat, *traits), kFirst);
}

}  // namespace

ContentForm TemplateTraits::ContentFormOf(absl::string_view role) const {
  if (role == "system" || role == "developer") return system_content;
  if (role == "assistant") return assistant_content;
  if (role == "tool") return tool_content;
  return user_content;
}

void ProbeTemplate(const ProbeRenderer& render, TemplateTraits* traits) {
  const ContentProbe user = {{Message("user", "")}, 0, &TemplateTraits::user_content};
  ProbeContent(render, user, traits);
  const ContentProbe system = {
      {Message("system", ""), Message("user", "hi")}, 0, &TemplateTraits::system_content};
  ProbeContent(render, system, traits);
  const ContentProbe assistant = {
      {Message("user", "hi"), Message("assistant", ""), Message("user", "hi")},
      1,
      &TemplateTraits::assistant_content};
  ProbeContent(render, assistant, traits);
  // The call before a tool result must have the form of arguments that the template accepts.
  ProbeArguments(render, traits);
  const ContentProbe tool = {
      {Message("user", "hi"), CallMessage(), ToolMessage("")}, 2, &TemplateTraits::tool_content};
  ProbeContent(render, tool, traits);
  ProbeTools(render, traits);
}

absl::StatusOr<bool> PrintsTools(const ProbeRenderer& render, ChatInput chat,
                                 const TemplateTraits& traits) {
  chat.tools = {ProbeTool()};
  const absl::StatusOr<std::string> text = render(chat, traits);
  if (!text.ok()) return text.status();
  return absl::StrContains(*text, kToolName);
}

}  // namespace quire::text
