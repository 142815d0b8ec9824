#include "text/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/utf8.h"
#include "formats/json_value.h"
#include "text/chat/chat_marker.h"
#include "text/chat/generic_tools.h"
#include "text/chat/jinja/json.h"
#include "text/chat/jinja/parser.h"
#include "text/chat/jinja/strings.h"
#include "text/chat/message_roles.h"
#include "text/tokenizer/decoder.h"

namespace quire::text {
namespace {

using jinja::MapBuilder;
using jinja::Value;

constexpr absl::string_view kDefaultName = "default";
// Name of the template that is preferred for conversations with tools.
constexpr absl::string_view kToolUseName = "tool_use";
// Maximum number of steps to render a probe, which is a conversation of a few words. The limit is
// lower for templates in requests, because clients choose these templates and each such request
// probes its template.
constexpr std::int64_t kMaxProbeSteps = 100000;
constexpr std::int64_t kMaxRequestProbeSteps = 10000;
// Name, in error messages, for a template that the request contains.
constexpr absl::string_view kRequestName = "request";

absl::Status BadInputError(absl::string_view name, int line, absl::string_view message) {
  // A template can cut an error message in the middle of a character.
  std::string text;
  Utf8Repairer repairer;
  repairer.Push(message, text);
  repairer.Finish(text);
  return WithReason(absl::InvalidArgumentError(text), Reason::kBadChatTemplateInput,
                    {{"template_name", std::string(name)}, {"line", absl::StrCat(line)}});
}

absl::Status MissingError(absl::string_view message, const std::string& field = "chat") {
  return WithReason(absl::FailedPreconditionError(message), Reason::kChatTemplateMissing,
                    {{"field", field}});
}

absl::Status TooLargeError(const jinja::RenderLimits& limits, const absl::Status& status) {
  return WithReason(absl::InvalidArgumentError(status.message()), Reason::kInputTooLarge,
                    {{"max_bytes", absl::StrCat(limits.max_bytes)}});
}

// Reads "chat_template" in a JSON file: a text, or a list of {"name", "template"}.
absl::Status ReadTemplates(absl::string_view json, std::vector<TemplateSource>* templates) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document, formats::JsonDocument::Parse(json));
  const formats::JsonValue root = document.root();
  QUIRE_RETURN_IF_ERROR(root.CheckObject());
  const std::optional<formats::JsonValue> value = root.Find("chat_template");
  if (!value || value->is_null()) return absl::OkStatus();
  if (value->is_string()) {
    QUIRE_ASSIGN_OR_RETURN(std::string text, value->AsString());
    templates->push_back({.name = std::string(kDefaultName), .text = std::move(text)});
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(value->CheckArray());
  for (std::size_t i = 0; i < value->size(); ++i) {
    TemplateSource source;
    QUIRE_ASSIGN_OR_RETURN(source.name, value->At(i).GetString("name"));
    QUIRE_ASSIGN_OR_RETURN(source.text, value->At(i).GetString("template"));
    templates->push_back(std::move(source));
  }
  return absl::OkStatus();
}

// Inputs of the functions that convert a conversation to template values.
struct ConversionContext {
  const jinja::TextHook& literal;  // applied to every text of the client
  const TemplateTraits& traits;
  jinja::JsonBudget budget;
};

absl::StatusOr<jinja::Variables> ReadVariables(absl::string_view json,
                                               const jinja::TextHook& text = {},
                                               jinja::JsonBudget* budget = nullptr) {
  jinja::Variables variables;
  if (json.empty()) return variables;
  QUIRE_ASSIGN_OR_RETURN(const Value value, jinja::FromJson(json, text, budget));
  if (!value.is_map()) return absl::InvalidArgumentError("not a JSON object");
  for (const auto& [key, entry] : value.as_map()->entries) {
    variables.emplace_back(key.as_string(), entry);
  }
  return variables;
}

absl::Status WithFieldName(absl::string_view field, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", status.message()));
}

absl::StatusOr<Value> ToolCallValue(const ChatToolCall& call, const std::string& field,
                                    ConversionContext& context) {
  const jinja::TextHook& literal = context.literal;
  const std::string json = call.arguments_json.empty() ? "{}" : call.arguments_json;
  absl::StatusOr<Value> arguments = Value::String(literal(json));
  if (context.traits.takes_mapping_arguments) {
    absl::StatusOr<Value> mapping = jinja::FromJson(json, literal, &context.budget);
    // Some models write malformed arguments. A conversation with such arguments is accepted if the
    // template can print them as text. JSON that exceeds the limits is rejected.
    const bool is_too_large = context.budget.bytes_left < 0 || context.budget.nodes_left < 0;
    const bool prints_text =
        context.traits.takes_text_arguments && !is_too_large && !FirstInvalidUtf8(json);
    if (mapping.ok()) {
      arguments = std::move(mapping);
    } else if (!prints_text) {
      return WithFieldName(absl::StrCat(field, ".arguments_json"), mapping.status());
    }
  }
  MapBuilder function;
  QUIRE_RETURN_IF_ERROR(function.Set("name", Value::String(literal(call.name))));
  QUIRE_RETURN_IF_ERROR(function.Set("arguments", *std::move(arguments)));
  MapBuilder value;
  if (!call.id.empty()) {
    QUIRE_RETURN_IF_ERROR(value.Set("id", Value::String(literal(call.id))));
  }
  QUIRE_RETURN_IF_ERROR(value.Set("type", Value::String("function")));
  QUIRE_RETURN_IF_ERROR(value.Set("function", std::move(function).Build()));
  return std::move(value).Build();
}

bool IsContentList(const ChatMessage& message, const TemplateTraits& traits) {
  const ContentForm form = traits.ContentFormOf(message.role);
  return form == ContentForm::kParts || form == ContentForm::kOnePart ||
         (form == ContentForm::kEither && !message.parts.empty());
}

// Returns the content in the form that the template prints: a string, or a list of text parts.
absl::StatusOr<Value> ContentValue(const ChatMessage& message, const ConversionContext& context) {
  if (!IsContentList(message, context.traits)) {
    return Value::String(context.literal(ContentText(message)));
  }
  const bool is_joined =
      message.parts.empty() || context.traits.ContentFormOf(message.role) == ContentForm::kOnePart;
  const std::vector<std::string> texts =
      is_joined ? std::vector<std::string>{ContentText(message)} : message.parts;
  std::vector<Value> parts;
  for (const std::string& text : texts) {
    MapBuilder part;
    QUIRE_RETURN_IF_ERROR(part.Set("type", Value::String("text")));
    QUIRE_RETURN_IF_ERROR(part.Set("text", Value::String(context.literal(text))));
    parts.push_back(std::move(part).Build());
  }
  return jinja::MakeList(std::move(parts));
}

absl::StatusOr<Value> MessageValue(const ChatMessage& message, std::size_t index,
                                   ConversionContext& context) {
  const jinja::TextHook& literal = context.literal;
  MapBuilder value;
  const absl::string_view role = TemplateRole(message.role, context.traits.template_has_developer);
  QUIRE_RETURN_IF_ERROR(value.Set("role", Value::String(literal(std::string(role)))));
  QUIRE_ASSIGN_OR_RETURN(Value content, ContentValue(message, context));
  QUIRE_RETURN_IF_ERROR(value.Set("content", std::move(content)));
  const std::pair<absl::string_view, const std::string*> optional[] = {
      {"name", &message.name}, {"tool_call_id", &message.tool_call_id}};
  for (const auto& [key, text] : optional) {
    if (!text->empty()) QUIRE_RETURN_IF_ERROR(value.Set(key, Value::String(literal(*text))));
  }
  if (!message.reasoning_content.empty()) {
    // Templates of different models use different names for the reasoning of earlier turns.
    const Value reasoning = Value::String(literal(message.reasoning_content));
    for (const absl::string_view key : {"reasoning_content", "reasoning", "thinking"}) {
      QUIRE_RETURN_IF_ERROR(value.Set(key, reasoning));
    }
  }
  if (message.tool_calls.empty()) return std::move(value).Build();
  std::vector<Value> calls;
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(
        Value call,
        ToolCallValue(message.tool_calls[i],
                      absl::StrCat("chat.messages[", index, "].tool_calls[", i, "]"), context));
    calls.push_back(std::move(call));
  }
  QUIRE_ASSIGN_OR_RETURN(Value list, jinja::MakeList(std::move(calls)));
  QUIRE_RETURN_IF_ERROR(value.Set("tool_calls", std::move(list)));
  return std::move(value).Build();
}

absl::StatusOr<Value> ToolValue(const ChatTool& tool, std::size_t index,
                                ConversionContext& context) {
  const jinja::TextHook& literal = context.literal;
  const std::string field = absl::StrCat("chat.tools[", index, "]");
  const auto parameters_error = [&](const absl::Status& status) {
    return WithFieldName(absl::StrCat(field, ".parameters_json_schema"), status);
  };
  if (!tool.json.empty()) {
    absl::StatusOr<Value> value = jinja::FromJson(tool.json, literal, &context.budget);
    if (value.ok()) return value;
    // If the parameters alone cannot be parsed either, the error names the parameters.
    const absl::Status alone = tool.parameters_json.empty()
                                   ? absl::OkStatus()
                                   : jinja::FromJson(tool.parameters_json).status();
    return alone.ok() ? WithFieldName(field, value.status()) : parameters_error(alone);
  }
  MapBuilder function;
  QUIRE_RETURN_IF_ERROR(function.Set("name", Value::String(literal(tool.name))));
  if (!tool.description.empty()) {
    QUIRE_RETURN_IF_ERROR(function.Set("description", Value::String(literal(tool.description))));
  }
  if (!tool.parameters_json.empty()) {
    absl::StatusOr<Value> parameters =
        jinja::FromJson(tool.parameters_json, literal, &context.budget);
    if (!parameters.ok()) return parameters_error(parameters.status());
    QUIRE_RETURN_IF_ERROR(function.Set("parameters", *std::move(parameters)));
  }
  if (tool.strict) QUIRE_RETURN_IF_ERROR(function.Set("strict", Value::Bool(true)));
  MapBuilder value;
  QUIRE_RETURN_IF_ERROR(value.Set("type", Value::String("function")));
  QUIRE_RETURN_IF_ERROR(value.Set("function", std::move(function).Build()));
  return std::move(value).Build();
}

bool ContinuesFinalMessage(const ChatInput& chat) {
  return chat.continue_final_message && !chat.messages.empty();
}

// Marks the end of the final message in the rendered text. The trailing space of this marker shows
// whether the template keeps spaces at the end of a content.
constexpr absl::string_view kEndOfFinal = "END_OF_FINAL_MESSAGE ";

absl::Status CheckCanContinue(const ChatInput& chat) {
  if (!ContinuesFinalMessage(chat) || chat.messages.back().tool_calls.empty())
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "continue_final_message is true, but messages[", chat.messages.size() - 1,
      "], the final message, has tool calls; only text content can be continued, so remove the "
      "tool calls or set continue_final_message to false"));
}

// Returns the final message with kEndOfFinal appended to its content.
absl::StatusOr<ChatMessage> MarkFinalMessage(const ChatInput& chat) {
  QUIRE_RETURN_IF_ERROR(CheckCanContinue(chat));
  ChatMessage last = chat.messages.back();
  absl::StrAppend(last.parts.empty() ? &last.content : &last.parts.back(), kEndOfFinal);
  return last;
}

// Truncates `text` at kEndOfFinal, as Hugging Face transformers does. Spaces before kEndOfFinal are
// removed unless the template keeps trailing spaces. `content` is the content of the final message,
// and the remaining text must end with it.
absl::Status TruncateAfterFinal(absl::string_view content, std::size_t num_messages,
                                std::string* text) {
  using jinja::Side;
  const absl::string_view mark = jinja::StripChars(kEndOfFinal, Side::kRight, std::nullopt);
  const std::size_t at = jinja::FindLast(*text, mark);
  const absl::string_view before = absl::string_view(*text).substr(0, at);
  const absl::string_view trimmed = jinja::StripChars(before, Side::kRight, std::nullopt);
  const absl::string_view trimmed_content = jinja::StripChars(content, Side::kBoth, std::nullopt);
  if (at == std::string::npos || !absl::EndsWith(trimmed, trimmed_content)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "continue_final_message is true, but the chat template does not print the content of "
        "messages[",
        num_messages - 1,
        "], the final message, unchanged: send a content that the template prints unchanged, or "
        "set continue_final_message to false"));
  }
  const bool keeps_spaces = absl::StartsWith(absl::string_view(*text).substr(at), kEndOfFinal);
  text->resize(keeps_spaces ? before.size() : trimmed.size());
  return absl::OkStatus();
}

// Returns the templates of the first file that has any.
FoundTemplates FindUnnamed(const TemplateFiles& files) {
  FoundTemplates found;
  const auto take_text = [&found](const std::optional<std::string>& text,
                                  absl::string_view origin) {
    if (!text) return false;
    found.origin = std::string(origin);
    if (text->empty()) {
      found.problem = absl::StrCat(origin, ": the template is empty");
    } else {
      found.templates.push_back({.name = std::string(kDefaultName), .text = *text});
    }
    return true;
  };
  const auto take_json = [&found](const std::optional<std::string>& json,
                                  absl::string_view origin) {
    if (!json) return false;
    const absl::Status status = ReadTemplates(*json, &found.templates);
    if (status.ok() && found.templates.empty()) return false;
    found.origin = std::string(origin);
    if (!status.ok()) {
      found.templates.clear();
      found.problem = absl::StrCat(origin, ": ", status.message());
    }
    return true;
  };
  if (take_text(files.template_file, "chat.template_file")) return found;
  if (take_text(files.chat_template_jinja, "chat_template.jinja")) return found;
  if (take_json(files.tokenizer_config_json, "tokenizer_config.json")) return found;
  if (take_json(files.chat_template_json, "chat_template.json")) return found;
  take_text(files.gguf_template, "tokenizer.chat_template");
  return found;
}

}  // namespace

std::int64_t InputBytes(const ChatInput& chat) {
  std::size_t bytes = chat.template_vars_json.size() + chat.template_text.size();
  for (const ChatMessage& message : chat.messages) {
    bytes += message.role.size() + message.content.size() + message.name.size() +
             message.tool_call_id.size() + message.reasoning_content.size();
    for (const std::string& part : message.parts) bytes += part.size();
    for (const ChatToolCall& call : message.tool_calls) {
      bytes += call.id.size() + call.name.size() + call.arguments_json.size();
    }
  }
  for (const ChatTool& tool : chat.tools) {
    // tool.json contains the other fields.
    bytes += tool.json.empty()
                 ? tool.name.size() + tool.description.size() + tool.parameters_json.size()
                 : tool.json.size();
  }
  return static_cast<std::int64_t>(bytes);
}

FoundTemplates FindTemplates(const TemplateFiles& files) {
  FoundTemplates found = FindUnnamed(files);
  for (TemplateSource& source : found.templates) source.origin = found.origin;
  if (files.template_file) return found;
  for (const TemplateSource& source : files.named) {
    std::erase_if(found.templates,
                  [&](const TemplateSource& other) { return other.name == source.name; });
    found.templates.push_back(source);
    if (found.origin.empty()) found.origin = source.origin;
  }
  return found;
}

absl::StatusOr<std::shared_ptr<const ChatTemplates>> ChatTemplates::Create(
    const FoundTemplates& found, const Tokenizer& tokenizer, const ChatOptions& options) {
  std::shared_ptr<ChatTemplates> templates(new ChatTemplates());
  templates->options_ = options;
  templates->problem_ = found.problem;
  if (found.templates.empty() && found.problem.empty()) {
    templates->problem_ =
        "the model has no chat template; set chat.template_file to a Jinja file, such as one of "
        "configs/templates";
  }
  for (const TemplateSource& source : found.templates) {
    const std::string label = absl::StrCat(source.origin, ": template \"", source.name, "\": ");
    absl::StatusOr<jinja::ParsedTemplate> parsed = absl::InvalidArgumentError("not UTF-8");
    if (!FirstInvalidUtf8(source.text)) parsed = jinja::Parse(source.text);
    if (parsed.ok()) {
      const bool template_has_developer = HasStringLiteral(source.text, "developer");
      templates->templates_.insert_or_assign(
          source.name, LoadedTemplate{std::move(parsed->body),
                                      {.template_has_developer = template_has_developer}});
      for (const std::string& warning : parsed->warnings) {
        templates->warnings_.push_back(absl::StrCat(label, warning));
      }
      continue;
    }
    const std::string problem = absl::StrCat(label, parsed.status().message());
    templates->template_errors_[source.name] = problem;
    absl::StrAppend(&templates->problem_, templates->problem_.empty() ? "" : "; ", problem);
  }
  absl::StatusOr<jinja::Variables> defaults = ReadVariables(options.default_vars_json);
  if (!defaults.ok()) return WithFieldName("chat.default_vars", defaults.status());
  const auto name_token = [&](const char* name, std::optional<std::int32_t> id) {
    if (!id) return;
    templates->default_variables_.emplace_back(name, Value::String(tokenizer.TokenBytes(*id)));
  };
  name_token("bos_token", tokenizer.bos_token_id());
  name_token("eos_token", tokenizer.eos_token_id());
  name_token("pad_token", tokenizer.pad_token_id());
  for (auto& variable : *defaults) templates->default_variables_.push_back(std::move(variable));
  if (options.escape_special_in_content) templates->CollectSpecialTokens(tokenizer);
  if (options.generic_tools) {
    QUIRE_ASSIGN_OR_RETURN(jinja::ParsedTemplate generic, jinja::Parse(GenericToolsSource()));
    templates->generic_template_ = std::move(generic.body);
  }
  for (auto& [name, loaded] : templates->templates_)
    templates->ProbeTraits(kMaxProbeSteps, &loaded);
  return std::shared_ptr<const ChatTemplates>(std::move(templates));
}

ProbeRenderer ChatTemplates::RendererOf(const jinja::Body& body,
                                        const jinja::RenderLimits& limits) const {
  return [this, &body, limits](const ChatInput& chat,
                               const TemplateTraits& traits) -> absl::StatusOr<std::string> {
    const jinja::TextHook identity = [](std::string text) { return text; };
    QUIRE_ASSIGN_OR_RETURN(const jinja::Variables variables, MakeVariables(chat, traits, identity));
    return jinja::Render(body, variables, limits, absl::UnixEpoch()).text;
  };
}

void ChatTemplates::ProbeTraits(std::int64_t max_steps, LoadedTemplate* loaded) const {
  jinja::RenderLimits limits = options_.limits;
  limits.max_steps = std::min(limits.max_steps, max_steps);
  ProbeTemplate(RendererOf(loaded->body, limits), &loaded->traits);
}

void ChatTemplates::CollectSpecialTokens(const Tokenizer& tokenizer) {
  std::vector<std::pair<absl::string_view, std::int32_t>> entries;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    const absl::string_view text = tokenizer.decoder().bytes(id);
    if (text.empty() || FirstInvalidUtf8(text)) continue;
    entries.emplace_back(text, id);
    longest_special_ = std::max(longest_special_, text.size());
  }
  special_ = PrefixTrie(std::move(entries));
}

std::vector<std::string> ChatTemplates::names() const {
  std::vector<std::string> names;
  for (const auto& [name, loaded] : templates_) names.push_back(name);
  return names;
}

bool ChatTemplates::has_default() const {
  return Choose("", /*has_tools=*/false).ok();
}

std::string ChatTemplates::NameFor(const std::string& requested, bool has_tools) const {
  if (!requested.empty()) return requested;
  if (!options_.default_template_name.empty()) return options_.default_template_name;
  const std::string for_tools(kToolUseName);
  if (has_tools && (templates_.contains(for_tools) || template_errors_.contains(for_tools))) {
    return for_tools;
  }
  return std::string(kDefaultName);
}

absl::StatusOr<const ChatTemplates::LoadedTemplate*> ChatTemplates::Choose(
    const std::string& requested, bool has_tools) const {
  const std::string name = NameFor(requested, has_tools);
  const auto found = templates_.find(name);
  if (found != templates_.end()) return &found->second;
  // If the model has only one template, requests need not name it.
  const bool is_unnamed = requested.empty() && options_.default_template_name.empty();
  if (is_unnamed && templates_.size() == 1 && template_errors_.empty())
    return &templates_.begin()->second;
  if (const auto broken = template_errors_.find(name); broken != template_errors_.end()) {
    return MissingError(broken->second);
  }
  if (templates_.empty()) return MissingError(problem_);
  return MissingError(absl::StrCat("the model has no chat template \"", name.substr(0, 64),
                                   "\"; it has ", absl::StrJoin(names(), ", ")),
                      "chat.template_name");
}

absl::StatusOr<jinja::Variables> ChatTemplates::MakeVariables(
    const ChatInput& chat, const TemplateTraits& traits, const jinja::TextHook& literal) const {
  jinja::Variables variables = default_variables_;
  std::size_t count = chat.messages.size() + chat.tools.size();
  for (const ChatMessage& message : chat.messages) count += message.parts.size();
  if (count > static_cast<std::size_t>(options_.json_limits.max_nodes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the conversation has ", count, " messages, content parts and tools, at most ",
                     options_.json_limits.max_nodes, " are allowed (limits.max_json_nodes)"));
  }
  ConversionContext context{
      .literal = literal, .traits = traits, .budget = jinja::JsonBudget(options_.json_limits)};
  absl::StatusOr<jinja::Variables> template_vars =
      ReadVariables(chat.template_vars_json, literal, &context.budget);
  if (!template_vars.ok()) return WithFieldName("chat.template_vars", template_vars.status());
  variables.emplace_back("documents", Value::None());
  for (auto& [name, value] : *template_vars) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      return absl::InvalidArgumentError(absl::StrCat("chat.template_vars must not set ", name,
                                                     "; use the separate field of that name"));
    }
    variables.emplace_back(name, std::move(value));
  }
  std::vector<Value> messages;
  std::optional<ChatMessage> marked_message;
  if (ContinuesFinalMessage(chat)) {
    QUIRE_ASSIGN_OR_RETURN(marked_message, MarkFinalMessage(chat));
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const bool is_continued = marked_message && i + 1 == chat.messages.size();
    QUIRE_ASSIGN_OR_RETURN(
        Value message, MessageValue(is_continued ? *marked_message : chat.messages[i], i, context));
    messages.push_back(std::move(message));
  }
  QUIRE_ASSIGN_OR_RETURN(Value message_list, jinja::MakeList(std::move(messages)));
  std::vector<Value> tools;
  for (std::size_t i = 0; i < chat.tools.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(Value tool, ToolValue(chat.tools[i], i, context));
    tools.push_back(std::move(tool));
  }
  QUIRE_ASSIGN_OR_RETURN(Value tool_list, jinja::MakeList(std::move(tools)));
  variables.emplace_back("messages", std::move(message_list));
  variables.emplace_back("tools", chat.tools.empty() ? Value::None() : std::move(tool_list));
  variables.emplace_back("add_generation_prompt", Value::Bool(chat.add_generation_prompt));
  return variables;
}

// Some templates print tools only in certain conversations. If the template did not print the tool
// of every probe, renders `chat` with a probe tool to find out.
absl::Status ChatTemplates::CheckTools(const std::string& name, const LoadedTemplate& chosen,
                                       const ChatInput& chat) const {
  if (chat.tools.empty() || chosen.traits.prints_tools) return absl::OkStatus();
  const absl::StatusOr<bool> prints =
      PrintsTools(RendererOf(chosen.body, options_.limits), chat, chosen.traits);
  // If this rendering fails, the rendering of the conversation reports the error.
  if (!prints.ok() || *prints) return absl::OkStatus();
  return MissingError(
      absl::StrCat(
          "tools has ", chat.tools.size(), chat.tools.size() == 1 ? " tool" : " tools",
          ", but the chat template \"", name,
          "\" does not print tools; set chat.tool_format: generic, or set chat.template_file to a "
          "template that prints tools"),
      "chat.tools");
}

absl::StatusOr<ChatInput> ChatTemplates::ToGeneric(const LoadedTemplate& chosen,
                                                   const ChatInput& chat) const {
  QUIRE_RETURN_IF_ERROR(CheckCanContinue(chat));
  std::string instructions;
  if (!chat.tools.empty()) {
    ChatInput tools;
    tools.tools = chat.tools;
    QUIRE_ASSIGN_OR_RETURN(instructions,
                           RendererOf(*generic_template_, options_.limits)(tools, {}));
  }
  return WithGenericTools(chat, instructions, chosen.traits.has_system_role);
}

absl::StatusOr<ChatTemplates::LoadedTemplate> ChatTemplates::LoadRequestTemplate(
    const std::string& text) const {
  const auto bad = [](absl::string_view problem) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("chat.template_text ", problem)),
                      Reason::kBadChatTemplateInput,
                      {{"template_name", std::string(kRequestName)},
                       {"line", "0"},
                       {"field", "chat.template_text"}});
  };
  const std::int64_t limit = options_.max_request_template_bytes;
  if (limit == 0) {
    return bad(
        "is refused, because chat.max_request_template_bytes is 0; omit it to use the "
        "template of the model");
  }
  if (static_cast<std::int64_t>(text.size()) > limit) {
    return bad(absl::StrCat("has ", text.size(), " bytes, at most ", limit,
                            " are allowed (chat.max_request_template_bytes)"));
  }
  if (FirstInvalidUtf8(text)) return bad("is not UTF-8");
  absl::StatusOr<jinja::ParsedTemplate> parsed = jinja::Parse(text);
  if (!parsed.ok()) {
    return bad(absl::StrCat("is not a valid template: ", parsed.status().message()));
  }
  LoadedTemplate loaded{std::move(parsed->body),
                        {.template_has_developer = HasStringLiteral(text, "developer")}};
  ProbeTraits(kMaxRequestProbeSteps, &loaded);
  return loaded;
}

absl::StatusOr<RenderedChat> ChatTemplates::Render(const ChatInput& chat,
                                                   absl::Time wall_now) const {
  if (!chat.template_text.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const LoadedTemplate own, LoadRequestTemplate(chat.template_text));
    return RenderLoaded(std::string(kRequestName), own, chat, wall_now);
  }
  // With generic tools, the template gets no tools.
  const bool has_tools = !chat.tools.empty() && !generic_template_.has_value();
  QUIRE_ASSIGN_OR_RETURN(const LoadedTemplate* chosen, Choose(chat.template_name, has_tools));
  return RenderLoaded(NameFor(chat.template_name, has_tools), *chosen, chat, wall_now);
}

absl::StatusOr<RenderedChat> ChatTemplates::RenderLoaded(const std::string& name,
                                                         const LoadedTemplate& chosen,
                                                         const ChatInput& chat,
                                                         absl::Time wall_now) const {
  if (generic_template_.has_value()) {
    const absl::StatusOr<ChatInput> generic = ToGeneric(chosen, chat);
    if (absl::IsResourceExhausted(generic.status())) {
      return TooLargeError(options_.limits, generic.status());
    }
    if (!generic.ok()) return BadInputError(name, 0, generic.status().message());
    return RenderTemplate(name, chosen, chat, *generic, wall_now);
  }
  return RenderTemplate(name, chosen, chat, chat, wall_now);
}

absl::StatusOr<RenderedChat> ChatTemplates::RenderTemplate(const std::string& name,
                                                           const LoadedTemplate& chosen,
                                                           const ChatInput& sent,
                                                           const ChatInput& chat,
                                                           absl::Time wall_now) const {
  const absl::StatusOr<ChatMarker> marker =
      ChatMarker::Create(chat, longest_special_ > 0 ? &special_ : nullptr, longest_special_);
  if (!marker.ok()) return BadInputError(name, 0, marker.status().message());
  const jinja::TextHook literal = [&marker](std::string text) {
    return marker->Mark(std::move(text));
  };
  const absl::StatusOr<jinja::Variables> variables = MakeVariables(chat, chosen.traits, literal);
  if (!variables.ok()) return BadInputError(name, 0, variables.status().message());
  QUIRE_RETURN_IF_ERROR(CheckTools(name, chosen, chat));
  jinja::RenderResult result = jinja::Render(chosen.body, *variables, options_.limits, wall_now);
  const absl::Status& status = result.text.status();
  if (absl::IsResourceExhausted(status)) return TooLargeError(options_.limits, status);
  const jinja::Position at = result.error_position;
  if (!status.ok()) {
    const std::string message = absl::StrCat(
        "chat template \"", name, "\", line ", at.line, ", column ", at.column, ": ",
        status.message(),
        UncommonRoleNote(sent, chosen.traits.template_has_developer, status.message()));
    if (!absl::IsUnimplemented(status)) return BadInputError(name, at.line, message);
    return MissingError(message);
  }
  const auto render_again = [&](ChatInput other) -> absl::StatusOr<std::string> {
    if (generic_template_.has_value()) {
      QUIRE_ASSIGN_OR_RETURN(other, ToGeneric(chosen, other));
    }
    QUIRE_ASSIGN_OR_RETURN(const jinja::Variables values,
                           MakeVariables(other, chosen.traits, literal));
    return jinja::Render(chosen.body, values, options_.limits, wall_now).text;
  };
  const absl::Status roles =
      CheckRolesAreRendered(sent, chosen.traits.template_has_developer, render_again);
  if (!roles.ok()) return BadInputError(name, 0, roles.message());
  std::string text = *std::move(result.text);
  if (ContinuesFinalMessage(chat)) {
    const ChatMessage& last = chat.messages.back();
    const bool is_list = !last.parts.empty() && IsContentList(last, chosen.traits);
    const std::string content = literal(is_list ? last.parts.back() : ContentText(last));
    const absl::Status cut = TruncateAfterFinal(content, sent.messages.size(), &text);
    if (!cut.ok()) return BadInputError(name, 0, cut.message());
  }
  return marker->Unmark(text);
}

}  // namespace quire::text
