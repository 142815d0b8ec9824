#pragma once

// Finds out what a chat template can take, by rendering small conversations with it.
//
// Templates differ in the form that they expect of tool-call arguments (a mapping, or JSON text to
// append) and of content (a string, or a list of parts). The wrong form is an error, or the text is
// silently missing from the prompt. Each finding compares renderings of one conversation in several
// forms and looks for the words that the conversation has.
//
// Place:      below chat_template.h, which probes every template when it is loaded.
// Threads:    pure.

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

// The defaults are those of a template that prints nothing of the probed kind.
struct TemplateTraits {
  // The forms of tool_calls[].function.arguments that are printed: a mapping, or JSON text. Both
  // may be true.
  bool takes_mapping_arguments = true;
  bool takes_text_arguments = false;
  // The form of content, by the role of the message.
  ContentForm system_content = ContentForm::kText;
  ContentForm user_content = ContentForm::kText;
  ContentForm assistant_content = ContentForm::kText;
  ContentForm tool_content = ContentForm::kText;
  // Tools reach the prompt; a system message does.
  bool prints_tools = false;
  bool has_system_role = false;
  // The template's source has the literal "developer". ProbeTemplate does not set this.
  bool names_developer = false;

  // `developer` counts as system, roles of other names as user.
  ContentForm ContentFormOf(absl::string_view role) const;
};

// Renders `chat` with the template that is probed, in the forms that `traits` names.
using ProbeRenderer =
    std::function<absl::StatusOr<std::string>(const ChatInput& chat, const TemplateTraits& traits)>;

TemplateTraits ProbeTemplate(const ProbeRenderer& render);

// Whether a tool reaches the prompt in this conversation. Errors are those of the rendering.
absl::StatusOr<bool> PrintsTools(const ProbeRenderer& render, ChatInput chat,
                                 const TemplateTraits& traits);

}  // namespace quire::text
