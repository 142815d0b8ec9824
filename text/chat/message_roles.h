#pragma once

// Handles uncommon roles, which are roles other than system, user, assistant and tool. Templates
// silently drop messages with roles that they do not know; these functions detect that.
//
// Place:      part of chat_template.h.
// Threads:    pure functions.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"

namespace quire::text {

// Returns whether the template contains the string literal `name`. REQUIRES: `source` is UTF-8.
bool HasStringLiteral(absl::string_view source, absl::string_view name);

// Returns the role that the template gets. `developer` becomes `system` unless the template
// contains the literal "developer".
absl::string_view TemplateRole(absl::string_view role, bool template_has_developer);

// Renders a conversation in the same way as the conversation of the request.
using ConversationRenderer = absl::FunctionRef<absl::StatusOr<std::string>(const ChatInput& chat)>;

// If the conversation has messages with uncommon roles, renders it again with probe texts as the
// contents of these messages. Returns INVALID_ARGUMENT with the first such message whose probe text
// is not printed. REQUIRES: rendering `chat` succeeds.
absl::Status CheckRolesAreRendered(const ChatInput& chat, bool template_has_developer,
                                   ConversationRenderer render);

// Returns text to append to a template's error. It names the first message of an uncommon role,
// unless the error already contains the role. Empty if there is no such message.
std::string UncommonRoleNote(const ChatInput& chat, bool template_has_developer,
                             absl::string_view error);

}  // namespace quire::text
