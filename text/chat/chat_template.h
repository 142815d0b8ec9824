#pragma once

// Conversations to prompts, as the model's own chat template prints them.
//
//   auto templates = ChatTemplates::Create(FindTemplates(files), tokenizer, options);
//   auto prompt = (*templates)->Render(chat, clock.WallNow());
//   tokenizer.Encode(prompt->text, {.add_special_tokens = false, .literal = prompt->literal});
//
// Place:      beside the tokenizer; text workers render with it. Knows neither protos nor files of
//             its own: the server reads them.
// Invariants: a model without a usable template is no error of Create: Render says why there is
//             none (FAILED_PRECONDITION / CHAT_TEMPLATE_MISSING), and so it does where a chat needs
//             a part of the template that is not supported, or has tools that the template does not
//             print. Every other failure of Render is
//             INVALID_ARGUMENT / BAD_CHAT_TEMPLATE_INPUT with the template's name and line, or
//             INPUT_TOO_LARGE. The same input and time render the same text.
// Threads:    immutable after Create.
// Lifetime:   independent of the tokenizer it was made with.

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
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::text {

struct ChatOptions {
  jinja::RenderLimits limits = {};
  std::string default_template_name = {};  // empty: "default"
  std::string default_vars_json = {};      // an object; empty: none
  bool escape_special_in_content = false;
  bool generic_tools = false;  // templates get tools as text (generic_tools.h)
  jinja::JsonLimits json_limits = {};
};

// All text of the conversation, in whatever field.
std::int64_t InputBytes(const ChatInput& chat);

// A template's text, under the name by which requests choose it.
struct TemplateSource {
  std::string name = {};
  std::string text = {};
  std::string origin = {};  // "chat_template.jinja", for messages
};

// What a model's files have to say, each absent when there is no such file or key.
struct TemplateFiles {
  std::optional<std::string> template_file = {};          // chat.template_file
  std::optional<std::string> chat_template_jinja = {};    // chat_template.jinja
  std::optional<std::string> tokenizer_config_json = {};  // its key chat_template
  std::optional<std::string> chat_template_json = {};     // the same
  std::optional<std::string> gguf_template = {};          // tokenizer.chat_template
  // The files of additional_chat_templates/, or the keys tokenizer.chat_template.NAME.
  std::vector<TemplateSource> named = {};
};

struct FoundTemplates {
  std::vector<TemplateSource> templates;  // empty: none
  std::string origin;                     // "chat_template.jinja", for messages
  std::string problem;                    // why there is none, if something is wrong with a file
};

// The templates of the first source that has any, and those of `named`, which replace others of
// the same name. With `template_file` it is the only one.
FoundTemplates FindTemplates(const TemplateFiles& files);

struct RenderedChat {
  std::string text;
  std::vector<ByteRange> literal;  // special tokens in here are plain text
};

class ChatTemplates {
 public:
  // Errors: INVALID_ARGUMENT when default_vars_json is no JSON object.
  static absl::StatusOr<std::shared_ptr<const ChatTemplates>> Create(const FoundTemplates& found,
                                                                     const Tokenizer& tokenizer,
                                                                     const ChatOptions& options);

  // `wall_now` is what strftime_now of the template prints.
  absl::StatusOr<RenderedChat> Render(const ChatInput& chat, absl::Time wall_now) const;

  // Names of the templates that requests can use.
  std::vector<std::string> names() const;
  // Whether a request that names no template can be rendered.
  bool has_default() const;
  const jinja::JsonLimits& json_limits() const { return options_.json_limits; }
  // Why templates, or some of them, cannot be used; empty: nothing is wrong.
  const std::string& problem() const { return problem_; }
  // Parts of usable templates that are not supported: a chat that needs one is refused.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  ChatTemplates() = default;

  struct LoadedTemplate {
    jinja::Body body;
    TemplateTraits traits;
  };

  // The template of a request that names `asked`, or none if that is empty.
  std::string NameFor(const std::string& asked, bool has_tools) const;
  absl::StatusOr<const LoadedTemplate*> Choose(const std::string& asked, bool has_tools) const;
  // FAILED_PRECONDITION unless the tools of this conversation reach the prompt.
  absl::Status CheckTools(const std::string& name, const LoadedTemplate& chosen,
                          const ChatInput& chat) const;
  absl::StatusOr<ChatInput> ToGeneric(const LoadedTemplate& chosen, const ChatInput& chat) const;
  // Errors name the messages of `sent`, the client's conversation. The template gets `chat`, which
  // the generic tool format makes of it.
  absl::StatusOr<RenderedChat> RenderTemplate(const std::string& name, const LoadedTemplate& chosen,
                                              const ChatInput& sent, const ChatInput& chat,
                                              absl::Time wall_now) const;
  absl::StatusOr<jinja::Variables> MakeVariables(const ChatInput& chat,
                                                 const TemplateTraits& traits,
                                                 const jinja::TextHook& literal) const;
  ProbeRenderer RendererOf(const jinja::Body& body, const jinja::RenderLimits& limits) const;
  void ProbeTraits(LoadedTemplate* loaded) const;
  void CollectSpecialTokens(const Tokenizer& tokenizer);

  ChatOptions options_;
  std::map<std::string, LoadedTemplate> templates_;
  std::map<std::string, std::string> broken_;  // name -> what is wrong with it
  std::optional<jinja::Body> generic_;         // GenericToolsSource(), with generic_tools
  std::string origin_;
  std::string problem_;
  std::vector<std::string> warnings_;
  jinja::Variables defaults_;
  StringTrie special_;  // texts of the special tokens, when content is to be kept literal
  std::size_t longest_special_ = 0;
};

}  // namespace quire::text
