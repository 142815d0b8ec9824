#include "text/chat/message_roles.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/chat/jinja/lexer.h"

namespace quire::text {
namespace {

constexpr absl::string_view kDeveloper = "developer";

// The API rejects empty roles, so only code in this process uses them.
bool IsCommon(absl::string_view role) {
  return role.empty() || role == "system" || role == "user" || role == "assistant" ||
         role == "tool";
}

// Returns text of digits, which filters such as upper and trim do not change.
std::string ProbeContent(std::size_t index) {
  return absl::StrCat("8361547290.", index, ".7");
}

std::string QuotedRole(const ChatInput& chat, std::size_t index) {
  return absl::StrCat("chat.messages[", index, "].role is \"",
                      absl::CHexEscape(chat.messages[index].role), "\"");
}

}  // namespace

bool HasStringLiteral(absl::string_view source, absl::string_view name) {
  const absl::StatusOr<std::vector<jinja::Token>> tokens = jinja::Tokenize(source);
  return tokens.ok() && std::ranges::any_of(*tokens, [name](const jinja::Token& token) {
           return token.type == jinja::TokenType::kString && token.text == name;
         });
}

absl::string_view TemplateRole(absl::string_view role, bool template_has_developer) {
  return role == kDeveloper && !template_has_developer ? "system" : role;
}

absl::Status CheckRolesAreRendered(const ChatInput& chat, bool template_has_developer,
                                   ConversationRenderer render) {
  const auto is_common = [](const ChatMessage& message) { return IsCommon(message.role); };
  if (std::ranges::all_of(chat.messages, is_common)) return absl::OkStatus();
  ChatInput probe = chat;
  for (std::size_t i = 0; i < probe.messages.size(); ++i) {
    if (is_common(probe.messages[i])) continue;
    probe.messages[i].content = ProbeContent(i);
    probe.messages[i].parts.clear();
  }
  const absl::StatusOr<std::string> text = render(probe);
  // The original contents were rendered without error. If the probe texts cause an error, the
  // template has read them.
  if (!text.ok()) return absl::OkStatus();
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (is_common(chat.messages[i]) || absl::StrContains(*text, ProbeContent(i))) continue;
    const bool is_system = chat.messages[i].role == kDeveloper && !template_has_developer;
    return absl::InvalidArgumentError(absl::StrCat(
        QuotedRole(chat, i), is_system
                                 ? ", but the chat template renders neither this role nor the role "
                                   "system here: send the text in a user message"
                                 : ", which the chat template does not render: use system, user, "
                                   "assistant or tool"));
  }
  return absl::OkStatus();
}

std::string UncommonRoleNote(const ChatInput& chat, bool template_has_developer,
                             absl::string_view error) {
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string& role = chat.messages[i].role;
    if (IsCommon(role)) continue;
    if (absl::StrContains(error, role)) return "";
    const absl::string_view given = TemplateRole(role, template_has_developer);
    return absl::StrCat(" (", QuotedRole(chat, i),
                        given == role ? "" : absl::StrCat(", passed to the template as ", given),
                        ")");
  }
  return "";
}

}  // namespace quire::text
