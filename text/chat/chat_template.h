#pragma once

// Renders conversations to prompts with the model's own chat template.
//
//   auto templates = ChatTemplates::Create(FindTemplates(files), tokenizer, options);
//   auto prompt = (*templates)->Render(chat, clock.WallNow());
//   tokenizer.Encode(prompt->text, {.add_special_tokens = false, .literal = prompt->literal});
//
// Place:      next to the tokenizer; text workers call it. Depends on no protos and reads no files.
// Invariants: Create succeeds for a model without a usable template, and Render then returns
//             FAILED_PRECONDITION / CHAT_TEMPLATE_MISSING with the cause. Render returns the same
//             error if a chat needs an unsupported part of the template, or has tools that the
//             template does not print. All other errors of Render are INVALID_ARGUMENT /
//             BAD_CHAT_TEMPLATE_INPUT, with the template's name and line, or INPUT_TOO_LARGE. The
//             same input and time render the same text.
// Threads:    immutable after Create.
// Lifetime:   independent of the tokenizer that Create used.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "text/chat/chat_input.h"
#include "text/chat/jinja/ast.h"
#include "text/chat/jinja/interpreter.h"
#include "text/chat/jinja/json.h"
#include "text/chat/template_traits.h"
#include "text/subword/prefix_trie.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {

struct ChatOptions {
  jinja::RenderLimits limits = {};
  std::string default_template_name = {};  // empty: "default"
  std::string default_vars_json = {};      // an object; empty: none
  bool escape_special_in_content = false;
  bool generic_tools = false;  // tools are written into the messages as text (generic_tools.h)
  std::int64_t max_request_template_bytes =
      0;  // limit of ChatInput.template_text; 0: always refused
  jinja::JsonLimits json_limits = {};
};

// Returns the number of bytes of text in all fields of the conversation.
std::int64_t InputBytes(const ChatInput& chat);

// The text of a template, and the name by which requests choose it.
struct TemplateSource {
  std::string name = {};
  std::string text = {};
  std::string origin = {};  // "chat_template.jinja", for messages
};

// Templates from the files of a model; nullopt where the file or key does not exist.
struct TemplateFiles {
  std::optional<std::string> template_file = {};          // chat.template_file
  std::optional<std::string> chat_template_jinja = {};    // chat_template.jinja
  std::optional<std::string> tokenizer_config_json = {};  // its key chat_template
  std::optional<std::string> chat_template_json = {};     // its key chat_template
  std::optional<std::string> gguf_template = {};          // tokenizer.chat_template
  // The files of additional_chat_templates/, or the keys tokenizer.chat_template.NAME.
  std::vector<TemplateSource> named = {};
};

struct FoundTemplates {
  std::vector<TemplateSource> templates;  // empty: none
  std::string origin;                     // file name such as "chat_template.jinja", for messages
  std::string problem;  // if a file is faulty, the reason why there are no templates
};

// Returns the templates of the first source that has any. Adds the templates in `named`, which
// replace templates of the same name. If `template_file` is set, it is the only template.
FoundTemplates FindTemplates(const TemplateFiles& files);

struct RenderedChat {
  std::string text;
  std::vector<ByteRange> literal;  // special tokens in these ranges are tokenized as plain text
};

class ChatTemplates {
 public:
  // Returns INVALID_ARGUMENT when default_vars_json is not a JSON object.
  static absl::StatusOr<std::shared_ptr<const ChatTemplates>> Create(const FoundTemplates& found,
                                                                     const Tokenizer& tokenizer,
                                                                     const ChatOptions& options);

  // The template's strftime_now prints `wall_now`.
  absl::StatusOr<RenderedChat> Render(const ChatInput& chat, absl::Time wall_now) const;

  // Returns the names of the templates that requests can use.
  std::vector<std::string> names() const;
  // Returns whether a request that names no template can be rendered.
  bool has_default() const;
  const jinja::JsonLimits& json_limits() const { return options_.json_limits; }
  // The reason why some or all templates cannot be used; empty if all can.
  const std::string& problem() const { return problem_; }
  // Unsupported parts of usable templates. A chat that needs an unsupported part is rejected.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  ChatTemplates() = default;

  struct LoadedTemplate {
    jinja::Body body;
    TemplateTraits traits;
  };

  // Parses ChatInput.template_text. Errors name the field.
  absl::StatusOr<LoadedTemplate> LoadRequestTemplate(const std::string& text) const;
  absl::StatusOr<RenderedChat> RenderLoaded(const std::string& name, const LoadedTemplate& chosen,
                                            const ChatInput& chat, absl::Time wall_now) const;
  // Returns the name of the template for a request. `requested` is the name in the request; empty:
  // none.
  std::string NameFor(const std::string& requested, bool has_tools) const;
  absl::StatusOr<const LoadedTemplate*> Choose(const std::string& requested, bool has_tools) const;
  // Returns FAILED_PRECONDITION unless the template prints the tools of this conversation.
  absl::Status CheckTools(const std::string& name, const LoadedTemplate& chosen,
                          const ChatInput& chat) const;
  absl::StatusOr<ChatInput> ToGeneric(const LoadedTemplate& chosen, const ChatInput& chat) const;
  // `sent` is the client's conversation, whose messages appear in errors. `chat` is the
  // conversation that the template gets, which the generic tool format may have changed.
  absl::StatusOr<RenderedChat> RenderTemplate(const std::string& name, const LoadedTemplate& chosen,
                                              const ChatInput& sent, const ChatInput& chat,
                                              absl::Time wall_now) const;
  absl::StatusOr<jinja::Variables> MakeVariables(const ChatInput& chat,
                                                 const TemplateTraits& traits,
                                                 const jinja::TextHook& literal) const;
  ProbeRenderer RendererOf(const jinja::Body& body, const jinja::RenderLimits& limits) const;
  void ProbeTraits(std::int64_t max_steps, LoadedTemplate* loaded) const;
  void CollectSpecialTokens(const Tokenizer& tokenizer);

  ChatOptions options_;
  std::map<std::string, LoadedTemplate> templates_;
  std::map<std::string, std::string> template_errors_;  // name -> error message
  std::optional<jinja::Body>
      generic_template_;  // parsed GenericToolsSource(), if generic_tools is set
  std::string problem_;
  std::vector<std::string> warnings_;
  jinja::Variables
      default_variables_;  // named tokens such as bos_token, and the parsed default_vars_json
  PrefixTrie special_;     // texts of the special tokens, if they are escaped in content
  std::size_t longest_special_ = 0;
};

}  // namespace quire::text
