#pragma once

// Roles beside system, user, assistant and tool. A template drops the messages of a role that it
// does not know, without an error; these functions find out which ones.
//
// Place:      part of chat_template.h.
// Threads:    pure.

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"

namespace quire::text {

// True if a string literal of the template is `name`. REQUIRES: `source` is UTF-8.
bool HasStringLiteral(absl::string_view source, absl::string_view name);

// The role under which the template gets a message: `system` for `developer` where the template
// does not name that role.
absl::string_view TemplateRole(absl::string_view role, bool names_developer);

// Renders a conversation as the request's own is rendered.
using ConversationRenderer = absl::FunctionRef<absl::StatusOr<std::string>(const ChatInput& chat)>;

// INVALID_ARGUMENT that names the first message of an uncommon role whose content the template does
// not print. Renders the conversation once more, with other contents in these messages, if it has
// any. REQUIRES: rendering `chat` succeeds.
absl::Status CheckRolesAreRendered(const ChatInput& chat, bool names_developer,
                                   ConversationRenderer render);

// The end of the message of a template's error. It names the first message of an uncommon role, if
// there is one and the error does not have the role's name.
std::string UncommonRoleNote(const ChatInput& chat, bool names_developer, absl::string_view error);

}  // namespace quire::text
