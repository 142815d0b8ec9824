#include "server/dialects/responses_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "formats/raw_json.h"
#include "server/dialects/dialect_fields.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_fields.h"

namespace quire::server {
namespace {

using formats::JsonValue;

// The objects whose members the table lists, as bits.
enum Owner : std::uint32_t {
  kBody = kResponsesBody,
  kStreamOptions = 1U << 1,
  kPart = 1U << 2,  // part of the content of an item
  kTool = 1U << 3,
  kNamedTool = 1U << 4,     // a tool_choice, or one of the allowed tools
  kAllowedTools = 1U << 5,  // a tool_choice
  kText = 1U << 6,
  kFormat = 1U << 7,
  kReasoning = 1U << 8,
  // Items of the input.
  kMessage = 1U << 9,
  kCall = 1U << 10,
  kCallOutput = 1U << 11,
  kReasoningItem = 1U << 12,
};

constexpr std::uint32_t kItems = kMessage | kCall | kCallOutput | kReasoningItem;
constexpr absl::string_view kNotStored =
    "responses are not stored; send the whole conversation as input";
constexpr absl::string_view kTextOnly = "the model reads text only; use parts of type input_text";
constexpr absl::string_view kCallsAreDirect = "the client runs all tools; remove it";

constexpr RequestField kFields[] = {
    Supported("model", kBody),
    Supported("input", kBody),
    Supported("instructions", kBody),
    Supported("tools", kBody),
    Supported("tool_choice", kBody),
    Supported("parallel_tool_calls", kBody),
    Supported("text", kBody, kText),
    Supported("reasoning", kBody, kReasoning),
    Supported("max_output_tokens", kBody),
    Supported("temperature", kBody),
    Supported("top_p", kBody),
    Supported("include", kBody),
    Supported("top_logprobs", kBody),
    Supported("stream", kBody),
    Supported("stream_options", kBody, kStreamOptions),
    Supported("metadata", kBody),
    Supported("user", kBody),
    // Fields without meaning: the answer has the same text with and without them.
    NoMeaning("store", kBody, kBoolean),
    NoMeaning("service_tier", kBody, kString),
    NoMeaning("safety_identifier", kBody, kString),
    NoMeaning("prompt_cache_key", kBody, kString),
    NoMeaning("prompt_cache_options", kBody, kObject),
    NoMeaning("prompt_cache_retention", kBody, kString),
    NoMeaning("max_tool_calls", kBody, kNumber),  // limits the tools that OpenAI runs
    NoMeaning("access_programs", kBody, kObject),
    NoMeaning("include_obfuscation", kStreamOptions, kBoolean),
    Refused("previous_response_id", kBody, kNotStored),
    Refused("conversation", kBody, kNotStored),
    Refused("background", kBody, "use stream, or call from a thread of the client", "[false]"),
    Refused("background_options", kBody, "use stream, or call from a thread of the client"),
    Refused("prompt", kBody, "send the prompt as instructions and input"),
    Refused("context_management", kBody, "shorten the input", "[[]]"),
    Refused("truncation", kBody, "shorten the input", R"(["disabled"])"),
    Refused("moderation", kBody, "moderate prompts and answers before and after the call"),
    Refused("image", kBody, "the model reads text only"),

    Supported("type", kItems | kPart | kTool | kNamedTool | kAllowedTools | kFormat),
    // Items and their parts.
    Supported("role", kMessage),
    Supported("content", kMessage | kReasoningItem),
    Supported("call_id", kCall | kCallOutput),
    Supported("name", kCall | kCallOutput | kTool | kNamedTool),
    Supported("arguments", kCall),
    Supported("output", kCallOutput),
    Supported("summary", kReasoningItem),
    Supported("text", kPart),
    NoMeaning("id", kItems, kString),
    NoMeaning("status", kItems, kString),
    NoMeaning("phase", kMessage, kString),
    NoMeaning("encrypted_content", kReasoningItem, kString),
    NoMeaning("annotations", kPart, kArray),
    NoMeaning("logprobs", kPart, kArray),
    NoMeaning("prompt_cache_breakpoint", kPart, kObject),
    Refused("caller", kCall | kCallOutput, kCallsAreDirect, R"([{"type": "direct"}])"),
    Refused("namespace", kCall | kCallOutput, "put the namespace into the name"),
    Refused("async", kCall | kCallOutput | kTool, "send the output with the next request",
            "[false]"),
    // Tools.
    Supported("description", kTool),
    Supported("parameters", kTool),
    Supported("strict", kTool),
    NoMeaning("output_schema", kTool, kObject),
    Refused("allowed_callers", kTool, kCallsAreDirect, R"([["direct"]])"),
    Refused("defer_loading", kTool, "send only the tools of this turn", "[false]"),
    Supported("mode", kAllowedTools),
    Supported("tools", kAllowedTools),
    // text and reasoning.
    Supported("format", kText, kFormat),
    Refused("verbosity", kText, "ask for short or long answers in the input", R"(["medium"])"),
    Supported("schema", kFormat),
    NoMeaning("name", kFormat, kString),
    NoMeaning("description", kFormat, kString),
    NoMeaning("strict", kFormat, kBoolean),  // the answer always follows the schema
    Supported("effort", kReasoning),
    NoMeaning("summary", kReasoning, kString),  // the answer has the whole reasoning
    NoMeaning("generate_summary", kReasoning, kString),
    Refused("context", kReasoning, "the chat template selects the reasoning that the model reads",
            R"(["auto"])"),
    Refused("mode", kReasoning, "remove it", R"(["standard"])"),
};

absl::Status Check(const JsonValue& object, Owner owner, const OpenAiLimits& limits) {
  return CheckFields(ResponsesFields(), object, owner, limits.on_unknown_field);
}

// Converts the items of `input` to messages.
class ItemReader {
 public:
  ItemReader(const OpenAiLimits& limits, v1::ChatPrompt* chat, FieldNames* names)
      : limits_(limits), chat_(chat), names_(names) {}

  // Adds a message. Errors about it name the field `path`.
  v1::ChatMessage* AddMessage(absl::string_view role, const std::string& path) {
    names_->Set(absl::StrCat("chat.messages[", chat_->messages_size(), "]"), path);
    v1::ChatMessage* const message = chat_->add_messages();
    message->set_role(std::string(role));
    return message;
  }

  absl::Status Read(const JsonValue& item) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(item, "message"));
    if (type == "message") return ReadAs(item, kMessage, &ItemReader::ReadMessage);
    if (type == "function_call") return ReadAs(item, kCall, &ItemReader::ReadCall);
    if (type == "function_call_output") {
      return ReadAs(item, kCallOutput, &ItemReader::ReadCallOutput);
    }
    if (type == "reasoning") return ReadAs(item, kReasoningItem, &ItemReader::ReadReasoning);
    return UnsupportedType(item, type,
                           "use message, function_call, function_call_output and reasoning items");
  }

 private:
  absl::Status ReadAs(const JsonValue& item, Owner owner,
                      absl::Status (ItemReader::*read)(const JsonValue&)) {
    QUIRE_RETURN_IF_ERROR(Check(item, owner, limits_));
    return (this->*read)(item);
  }

  // Returns the last message if the assistant wrote it, otherwise null.
  v1::ChatMessage* LastOfAssistant() {
    if (chat_->messages().empty()) return nullptr;
    v1::ChatMessage* const last = chat_->mutable_messages(chat_->messages_size() - 1);
    return last->role() == "assistant" ? last : nullptr;
  }

  // Returns the last message if the assistant wrote it and it has only reasoning so far. Otherwise
  // returns a new message.
  v1::ChatMessage* OpenMessage(const JsonValue& item) {
    v1::ChatMessage* const last = LastOfAssistant();
    const bool is_open = last != nullptr && last->parts().empty() && last->tool_calls().empty() &&
                         !last->reasoning_content().empty();
    return is_open ? last : AddMessage("assistant", item.path());
  }

  // Reads text, or a list of parts that have one of these types.
  absl::Status ReadParts(const JsonValue& content, std::initializer_list<absl::string_view> types,
                         v1::ChatMessage* message) {
    if (content.is_string()) {
      QUIRE_ASSIGN_OR_RETURN(*message->add_parts()->mutable_text(), content.AsString());
      return absl::OkStatus();
    }
    if (!content.is_array()) return BadField(content, "must be a string or a list of parts");
    for (std::size_t i = 0; i < content.size(); ++i) {
      const JsonValue part = content.At(i);
      QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(part));
      if (std::ranges::find(types, type) == types.end()) {
        return UnsupportedType(part, type, kTextOnly);
      }
      QUIRE_RETURN_IF_ERROR(Check(part, kPart, limits_));
      QUIRE_ASSIGN_OR_RETURN(*message->add_parts()->mutable_text(), RequiredText(part, "text"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadMessage(const JsonValue& item) {
    QUIRE_ASSIGN_OR_RETURN(const std::string role, RequiredText(item, "role"));
    const auto content = item.FindNonNull("content");
    if (!content) return MissingMember(item, "content");
    v1::ChatMessage* const message =
        role == "assistant" ? OpenMessage(item) : AddMessage(role, item.path());
    return ReadParts(*content, {"input_text", "output_text", "text"}, message);
  }

  absl::Status ReadCall(const JsonValue& item) {
    v1::ChatMessage* message = LastOfAssistant();
    if (message == nullptr) message = AddMessage("assistant", item.path());
    names_->Set(absl::StrCat("chat.messages[", chat_->messages_size() - 1, "].tool_calls[",
                             message->tool_calls_size(), "]"),
                item.path());
    v1::ToolCall* const call = message->add_tool_calls();
    QUIRE_ASSIGN_OR_RETURN(*call->mutable_id(), RequiredText(item, "call_id"));
    QUIRE_ASSIGN_OR_RETURN(*call->mutable_name(), RequiredText(item, "name"));
    QUIRE_ASSIGN_OR_RETURN(*call->mutable_arguments_json(), RequiredText(item, "arguments"));
    return absl::OkStatus();
  }

  absl::Status ReadCallOutput(const JsonValue& item) {
    v1::ChatMessage* const message = AddMessage("tool", item.path());
    QUIRE_ASSIGN_OR_RETURN(*message->mutable_tool_call_id(), RequiredText(item, "call_id"));
    QUIRE_RETURN_IF_ERROR(JsonFields(item).Text("name", message->mutable_name()));
    const auto output = item.FindNonNull("output");
    if (!output) return MissingMember(item, "output");
    return ReadParts(*output, {"input_text"}, message);
  }

  // Reads the content of a reasoning item, or its summary if it has no content.
  absl::Status ReadReasoning(const JsonValue& item) {
    v1::ChatMessage parts;
    if (const auto content = item.FindNonNull("content")) {
      QUIRE_RETURN_IF_ERROR(ReadParts(*content, {"reasoning_text"}, &parts));
    } else if (const auto summary = item.FindNonNull("summary")) {
      QUIRE_RETURN_IF_ERROR(ReadParts(*summary, {"summary_text"}, &parts));
    }
    std::string* text = nullptr;
    for (const v1::ContentPart& part : parts.parts()) {
      if (part.text().empty()) continue;
      if (text == nullptr) text = OpenMessage(item)->mutable_reasoning_content();
      absl::StrAppend(text, text->empty() ? "" : "\n", part.text());
    }
    return absl::OkStatus();
  }

  const OpenAiLimits& limits_;
  v1::ChatPrompt* const chat_;
  FieldNames* const names_;
};

absl::Status ReadInput(const JsonFields& body, const OpenAiLimits& limits, v1::ChatPrompt* chat,
                       FieldNames* names) {
  ItemReader reader(limits, chat, names);
  QUIRE_RETURN_IF_ERROR(body.Text("instructions", [&](std::string text) {
    reader.AddMessage("system", "instructions")->add_parts()->set_text(std::move(text));
  }));
  const auto input = body.Find("input");
  if (!input) return MissingInput("input");
  if (input->is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*reader.AddMessage("user", "input")->add_parts()->mutable_text(),
                           input->AsString());
    return absl::OkStatus();
  }
  if (!input->is_array()) return BadField(*input, "must be a string or a list of items");
  for (std::size_t i = 0; i < input->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(reader.Read(input->At(i)));
  }
  return absl::OkStatus();
}

// Names of the allowed tools; absent: all tools are allowed.
using AllowedTools = std::optional<std::vector<std::string>>;

absl::StatusOr<AllowedTools> ReadAllowedTools(const JsonValue& choice, const OpenAiLimits& limits,
                                              v1::ChatPrompt* chat) {
  QUIRE_ASSIGN_OR_RETURN(const std::string mode, RequiredText(choice, "mode"));
  if (mode != "auto" && mode != "required") {
    return BadField(*choice.FindNonNull("mode"), "must be auto or required");
  }
  chat->set_tool_choice(mode == "auto" ? v1::TOOL_CHOICE_AUTO : v1::TOOL_CHOICE_REQUIRED);
  const auto tools = choice.FindNonNull("tools");
  if (!tools) return MissingMember(choice, "tools");
  QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
  if (tools->size() == 0) {
    return BadField(*tools, "must have at least one tool; send tool_choice none to allow no tool");
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const JsonValue tool = tools->At(i);
    QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(tool));
    if (type != "function") return UnsupportedType(tool, type, "use tools of type function");
    QUIRE_RETURN_IF_ERROR(Check(tool, kNamedTool, limits));
    QUIRE_ASSIGN_OR_RETURN(names.emplace_back(), RequiredText(tool, "name"));
  }
  return AllowedTools(std::move(names));
}

absl::StatusOr<AllowedTools> ReadToolChoice(const JsonFields& body, const OpenAiLimits& limits,
                                            v1::ChatPrompt* chat) {
  const auto choice = body.Find("tool_choice");
  if (!choice) return AllowedTools();
  if (choice->is_object()) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(*choice));
    if (type != "function" && type != "allowed_tools") {
      return UnsupportedType(*choice, type, "use none, auto, required, function or allowed_tools");
    }
    const bool is_list = type == "allowed_tools";
    QUIRE_RETURN_IF_ERROR(Check(*choice, is_list ? kAllowedTools : kNamedTool, limits));
    if (is_list) return ReadAllowedTools(*choice, limits, chat);
    chat->set_tool_choice(v1::TOOL_CHOICE_NAMED);
    QUIRE_ASSIGN_OR_RETURN(*chat->mutable_tool_name(), RequiredText(*choice, "name"));
    return AllowedTools();
  }
  if (SetToolChoiceMode(*choice, chat)) return AllowedTools();
  return BadField(*choice, "must be none, auto, required, a function or allowed_tools");
}

// `raw` is the tool's text in the body.
absl::Status ReadTool(const JsonValue& tool, absl::string_view raw, const OpenAiLimits& limits,
                      v1::ToolSpec* spec) {
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(tool));
  if (type != "function") {
    return UnsupportedType(tool, type, "describe the tool as a function that the client runs");
  }
  QUIRE_RETURN_IF_ERROR(Check(tool, kTool, limits));
  const JsonFields fields(tool);
  QUIRE_ASSIGN_OR_RETURN(*spec->mutable_name(), RequiredText(tool, "name"));
  QUIRE_RETURN_IF_ERROR(fields.Text("description", spec->mutable_description()));
  QUIRE_RETURN_IF_ERROR(fields.Bool("strict", [&](bool strict) { spec->set_strict(strict); }));
  const auto parameters = fields.Find("parameters");
  if (!parameters) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckObject(*parameters));
  spec->set_parameters_json_schema(std::string(formats::RawMember(raw, "parameters")));
  return absl::OkStatus();
}

absl::Status ReadTools(const JsonFields& body, absl::string_view bytes, const OpenAiLimits& limits,
                       v1::ChatPrompt* chat, FieldNames* names) {
  QUIRE_RETURN_IF_ERROR(body.Bool("parallel_tool_calls",
                                  [&](bool parallel) { chat->set_parallel_tool_calls(parallel); }));
  QUIRE_ASSIGN_OR_RETURN(const AllowedTools allowed, ReadToolChoice(body, limits, chat));
  std::vector<std::string> declared;
  std::vector<std::size_t> indexes;
  if (const auto tools = body.Find("tools")) {
    QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
    const std::vector<absl::string_view> raw =
        formats::RawElements(formats::RawMember(bytes, "tools"));
    for (std::size_t i = 0; i < tools->size(); ++i) {
      v1::ToolSpec spec;
      QUIRE_RETURN_IF_ERROR(ReadTool(tools->At(i), raw[i], limits, &spec));
      declared.push_back(spec.name());
      if (allowed && std::ranges::find(*allowed, spec.name()) == allowed->end()) continue;
      indexes.push_back(i);
      *chat->add_tools() = std::move(spec);
    }
  }
  names->SetToolIndexes(std::move(indexes));
  for (std::size_t i = 0; allowed && i < allowed->size(); ++i) {
    if (std::ranges::find(declared, (*allowed)[i]) != declared.end()) continue;
    return BadField(body.Find("tool_choice")->FindNonNull("tools")->At(i),
                    absl::StrCat("has the name ", JsonQuoted((*allowed)[i].substr(0, 64)),
                                 ", it must be the name of one of the tools"));
  }
  return absl::OkStatus();
}

absl::Status ReadFormat(const JsonFields& body, absl::string_view bytes,
                        v1::GenerateRequest* request, FieldNames* names) {
  const auto text = body.Find("text");
  if (!text) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckObject(*text));
  const auto format = text->FindNonNull("format");
  if (!format) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::string type, TypeOf(*format));
  if (type == "text") return absl::OkStatus();
  names->SetConstraint(format->path());
  if (type == "json_object") {
    request->mutable_constraint()->mutable_json_object();
    return absl::OkStatus();
  }
  if (type != "json_schema") {
    return UnsupportedType(*format, type, "use text, json_object or json_schema");
  }
  const auto schema = format->FindNonNull("schema");
  if (!schema) return MissingMember(*format, "schema");
  return SetSchema(
      *schema,
      formats::RawMember(formats::RawMember(formats::RawMember(bytes, "text"), "format"), "schema"),
      request, names);
}

absl::Status ReadInclude(const JsonFields& body, v1::OutputOptions* output, OpenAiRequest* result) {
  constexpr absl::string_view kLogprobs = "message.output_text.logprobs";
  // The other known values name members that answers never have, or always have in full.
  constexpr absl::string_view kKnown[] = {kLogprobs,
                                          "reasoning.encrypted_content",
                                          "message.input_image.image_url",
                                          "file_search_call.results",
                                          "web_search_call.results",
                                          "web_search_call.action.sources",
                                          "computer_call_output.output.image_url",
                                          "code_interpreter_call.outputs"};
  if (const auto include = body.Find("include")) {
    QUIRE_RETURN_IF_ERROR(CheckArray(*include));
    for (std::size_t i = 0; i < include->size(); ++i) {
      const auto name = include->At(i).AsString();
      if (!name.ok()) return NameField(name.status(), include->At(i));
      if (std::ranges::find(kKnown, *name) == std::end(kKnown)) {
        return BadField(include->At(i),
                        absl::StrCat("must be one of ", absl::StrJoin(kKnown, ", ")));
      }
      if (*name == kLogprobs) result->logprobs = true;
    }
  }
  if (result->logprobs) output->set_logprobs(0);
  std::int32_t top = 0;
  QUIRE_RETURN_IF_ERROR(body.Int32("top_logprobs", &top));
  if (top != 0 && !result->logprobs) {
    return BadField(*body.Find("top_logprobs"), absl::StrCat("needs ", kLogprobs, " in include"));
  }
  if (top != 0) output->set_logprobs(top);
  return absl::OkStatus();
}

// Returns the members of the answer that repeat the request, as JSON text without braces.
std::string RepeatedMembers(const JsonFields& body, absl::string_view bytes) {
  constexpr std::pair<absl::string_view, absl::string_view> kMembers[] = {
      {"instructions", "null"},
      {"max_output_tokens", "null"},
      {"metadata", "{}"},
      {"parallel_tool_calls", "true"},
      {"reasoning", R"({"effort":null,"summary":null})"},
      {"temperature", "null"},
      {"text", R"({"format":{"type":"text"}})"},
      {"tool_choice", R"("auto")"},
      {"tools", "[]"},
      {"top_logprobs", "0"},
      {"top_p", "null"},
      {"user", "null"}};
  std::string members;
  for (const auto& [name, absent] : kMembers) {
    absl::StrAppend(&members, members.empty() ? "" : ",", JsonQuoted(name), ":",
                    body.Find(name) ? CompactJson(formats::RawMember(bytes, name)) : absent);
  }
  return members;
}

void SetNames(FieldNames* names) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"prompt", "input"},
      {"chat", "input"},
      {"chat.messages", "input"},
      {"chat.template_name", "input"},
      {"chat.template_vars", "reasoning"},
      {"chat.tools[].name", "tools[].name"},
      {"chat.tools[].description", "tools[].description"},
      {"chat.tools[].parameters_json_schema", "tools[].parameters"},
      {"chat.tools[].strict", "tools[].strict"},
      {"chat.tool_name", "tool_choice.name"},
      {"stopping.max_tokens", "max_output_tokens"},
      {"output.logprobs", "top_logprobs"},
  };
  for (const auto& [ours, theirs] : kNames) names->Set(ours, theirs);
}

absl::Status ReadOptions(const JsonFields& body, v1::GenerateRequest* request,
                         OpenAiRequest* result) {
  QUIRE_RETURN_IF_ERROR(body.Text("model", request->mutable_model()));
  v1::SamplingParams* const sampling = request->mutable_sampling();
  QUIRE_RETURN_IF_ERROR(body.Float("temperature", [&](float v) { sampling->set_temperature(v); }));
  QUIRE_RETURN_IF_ERROR(body.Float("top_p", [&](float v) { sampling->set_top_p(v); }));
  QUIRE_RETURN_IF_ERROR(body.Int32("max_output_tokens", [&](std::int32_t v) {
    request->mutable_stopping()->set_max_tokens(v);
  }));
  QUIRE_RETURN_IF_ERROR(body.Bool("stream", &result->stream));
  QUIRE_RETURN_IF_ERROR(body.Text("user", [&](std::string user) {
    (*request->mutable_labels())["user"] = TruncateLabel(std::move(user));
  }));
  for (const char* key : {"metadata", "reasoning", "stream_options"}) {
    if (const auto value = body.Find(key)) QUIRE_RETURN_IF_ERROR(CheckObject(*value));
  }
  if (const auto reasoning = body.Find("reasoning")) {
    if (const auto effort = reasoning->FindNonNull("effort")) {
      QUIRE_RETURN_IF_ERROR(SetReasoningEffort(*effort, request->mutable_chat()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const FieldTable& ResponsesFields() {
  static const auto* const kTable = new FieldTable(kFields);
  return *kTable;
}

absl::StatusOr<OpenAiRequest> ParseResponsesRequest(absl::string_view bytes,
                                                    const OpenAiLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         ParseBody(bytes, ResponsesFields(), kBody, limits));
  const JsonFields body(document.root());
  OpenAiRequest result;
  result.is_chat = true;
  v1::GenerateRequest request;
  FieldNames* const names = &result.names;
  SetNames(names);
  names->SetConstraint("tools");
  QUIRE_RETURN_IF_ERROR(ReadOptions(body, &request, &result));
  QUIRE_RETURN_IF_ERROR(ReadInput(body, limits, request.mutable_chat(), names));
  QUIRE_RETURN_IF_ERROR(ReadTools(body, bytes, limits, request.mutable_chat(), names));
  QUIRE_RETURN_IF_ERROR(ReadFormat(body, bytes, &request, names));
  v1::OutputOptions* const output = request.mutable_output();
  QUIRE_RETURN_IF_ERROR(ReadInclude(body, output, &result));
  MoveSinglePartsToContent(request.mutable_chat());
  output->set_stream(result.stream);
  output->set_text(true);
  output->set_parse(true);
  result.repeated_members = RepeatedMembers(body, bytes);
  result.prompts.push_back(std::move(request));
  return result;
}

}  // namespace quire::server
