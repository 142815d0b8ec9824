#pragma once

// Detects which inputs a chat template accepts by rendering small probe conversations.
//
// Templates expect different forms of tool-call arguments (a mapping, or JSON text to append) and
// of content (a string, or a list of parts). With the wrong form the template fails, or the text is
// missing from the prompt. Each probe renders a conversation in several forms and checks which
// results contain the words of the conversation.
//
// Place:      below chat_template.h, which probes every template when it is loaded.
// Threads:    pure functions.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"

namespace quire::text {

// The form of a message's content that a template prints.
enum class ContentForm : std::uint8_t {
  kText,     // a string
  kParts,    // a list of parts; a string is not printed
  kOnePart,  // a list with one part; neither a string nor a second part is printed
  kEither    // both a string and a list of parts
};

// The defaults apply if a template does not print the probed input in any form.
struct TemplateTraits {
  // The printed forms of tool_calls[].function.arguments: a mapping, or JSON text. Both may be
  // true.
  bool takes_mapping_arguments = true;
  bool takes_text_arguments = false;
  // The form of content for each role.
  ContentForm system_content = ContentForm::kText;
  ContentForm user_content = ContentForm::kText;
  ContentForm assistant_content = ContentForm::kText;
  ContentForm tool_content = ContentForm::kText;
  bool prints_tools = false;     // the prompt contains the tools
  bool has_system_role = false;  // the prompt contains system messages
  // Whether the template's source has the literal "developer".
  bool template_has_developer = false;

  // Treats `developer` as system and unknown roles as user.
  ContentForm ContentFormOf(absl::string_view role) const;
};

// Renders `chat` with the probed template, using the forms in `traits`.
using ProbeRenderer =
    std::function<absl::StatusOr<std::string>(const ChatInput& chat, const TemplateTraits& traits)>;

// Sets every field but template_has_developer. REQUIRES: these fields have their defaults.
void ProbeTemplate(const ProbeRenderer& render, TemplateTraits* traits);

// Returns whether the prompt of this conversation contains its tools. Also returns the
// errors of `render`.
absl::StatusOr<bool> PrintsTools(const ProbeRenderer& render, ChatInput chat,
                                 const TemplateTraits& traits);

}  // namespace quire::text
