#include "server/openai/chat_messages.h"

#include <google/protobuf/struct.pb.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "formats/raw_json.h"
#include "server/api/status_mapping.h"

namespace quire::server {
namespace {

using formats::JsonValue;
using nlohmann::json;

// Reads content: a string, or a list of parts.
absl::Status ReadContent(const JsonValue& content, v1::ChatMessage* message) {
  if (content.is_string()) {
    QUIRE_ASSIGN_OR_RETURN(*message->mutable_content(), content.AsString());
    return absl::OkStatus();
  }
  if (!content.is_array()) return BadField(content, "must be a string or a list of parts");
  for (std::size_t i = 0; i < content.size(); ++i) {
    const JsonValue part = content.At(i);
    QUIRE_RETURN_IF_ERROR(CheckObject(part));
    std::string type;
    QUIRE_RETURN_IF_ERROR(JsonFields(part).Text("type", &type));
    if (type != "text") {
      return BadField(
          part, absl::StrCat("has type \"", type.substr(0, 40), "\", but only text is supported"));
    }
    QUIRE_ASSIGN_OR_RETURN(*message->add_parts()->mutable_text(), RequiredText(part, "text"));
  }
  return absl::OkStatus();
}

// Reads {"name": .., "arguments": ..}.
absl::Status ReadCalledFunction(const JsonValue& function, v1::ToolCall* message) {
  QUIRE_RETURN_IF_ERROR(CheckObject(function));
  QUIRE_ASSIGN_OR_RETURN(*message->mutable_name(), RequiredText(function, "name"));
  return JsonFields(function).Text("arguments", message->mutable_arguments_json());
}

absl::Status ReadToolCall(const JsonValue& call, v1::ToolCall* message) {
  QUIRE_RETURN_IF_ERROR(CheckObject(call));
  const JsonFields fields(call);
  QUIRE_RETURN_IF_ERROR(fields.Text("id", message->mutable_id()));
  const auto function = fields.Find("function");
  if (!function) return MissingMember(call, "function");
  return ReadCalledFunction(*function, message);
}

// Reads tool_calls, or the older function_call, which has no id.
absl::Status ReadToolCalls(const JsonFields& fields, v1::ChatMessage* message) {
  const auto calls = fields.Find("tool_calls");
  if (const auto call = fields.Find("function_call")) {
    if (calls) return BadField(*call, "cannot be combined with tool_calls");
    return ReadCalledFunction(*call, message->add_tool_calls());
  }
  if (!calls) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckArray(*calls));
  for (std::size_t i = 0; i < calls->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadToolCall(calls->At(i), message->add_tool_calls()));
  }
  return absl::OkStatus();
}

// Reads the reasoning of an earlier message. Clients use one of three names for it.
absl::Status ReadReasoning(const JsonFields& fields, v1::ChatMessage* message) {
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    std::string text;
    QUIRE_RETURN_IF_ERROR(fields.Text(key, &text));
    if (text.empty()) continue;
    const std::string& known = message->reasoning_content();
    if (!known.empty() && known != text) {
      return BadField(
          *fields.Find(key),
          "differs from the reasoning in another field; send only one of reasoning_content, "
          "reasoning and thinking");
    }
    message->set_reasoning_content(std::move(text));
  }
  return absl::OkStatus();
}

absl::Status ReadMessage(const JsonValue& value, v1::ChatMessage* message) {
  QUIRE_RETURN_IF_ERROR(CheckObject(value));
  const JsonFields fields(value);
  QUIRE_ASSIGN_OR_RETURN(*message->mutable_role(), RequiredText(value, "role"));
  QUIRE_RETURN_IF_ERROR(fields.Text("name", message->mutable_name()));
  QUIRE_RETURN_IF_ERROR(fields.Text("tool_call_id", message->mutable_tool_call_id()));
  QUIRE_RETURN_IF_ERROR(ReadReasoning(fields, message));
  // Only an assistant message may have no content: it may consist of reasoning and tool calls.
  const auto content = fields.Find("content");
  if (!content && message->role() != "assistant") return MissingMember(value, "content");
  if (content) QUIRE_RETURN_IF_ERROR(ReadContent(*content, message));
  return ReadToolCalls(fields, message);
}

// Converts each function_call, an older form, to a tool call with an id. Converts the message of
// role `function` that answers the call to a message of role `tool`. Other messages of role
// `function` are not changed.
void PairFunctionCalls(const JsonValue& messages, v1::ChatPrompt* chat) {
  std::string name, id;
  for (int i = 0; i < chat->messages_size(); ++i) {
    v1::ChatMessage* const message = chat->mutable_messages(i);
    if (messages.At(static_cast<std::size_t>(i)).FindNonNull("function_call")) {
      name = message->tool_calls(0).name();
      // Mistral's templates require ids of nine characters.
      id = absl::StrFormat("call%05d", i);
      message->mutable_tool_calls(0)->set_id(id);
    } else if (message->role() == "function" && !id.empty() && message->name() == name) {
      message->set_role("tool");
      message->set_tool_call_id(std::exchange(id, ""));
    }
  }
}

// Reads the name of a declared or chosen tool.
absl::StatusOr<std::string> ReadFunctionName(const JsonValue& tool) {
  QUIRE_RETURN_IF_ERROR(CheckObject(tool));
  const JsonFields fields(tool);
  std::string type = "function";
  QUIRE_RETURN_IF_ERROR(fields.Text("type", &type));
  if (type != "function") return BadField(tool, "must be of type function");
  const auto function = fields.Find("function");
  if (!function) return MissingMember(tool, "function");
  QUIRE_RETURN_IF_ERROR(CheckObject(*function));
  return RequiredText(*function, "name");
}

// Checks the types of {"name": .., "description": .., "parameters": .., "strict": ..}, and returns
// the name.
absl::StatusOr<std::string> CheckFunction(const JsonValue& function) {
  QUIRE_RETURN_IF_ERROR(CheckObject(function));
  QUIRE_ASSIGN_OR_RETURN(std::string name, RequiredText(function, "name"));
  const JsonFields fields(function);
  const auto ignore = [](const auto&) {};
  QUIRE_RETURN_IF_ERROR(fields.Text("description", ignore));
  QUIRE_RETURN_IF_ERROR(fields.Bool("strict", ignore));
  if (const auto parameters = fields.Find("parameters")) {
    QUIRE_RETURN_IF_ERROR(CheckObject(*parameters));
  }
  return name;
}

// Names of the allowed tools; absent: all tools are allowed.
using AllowedTools = std::optional<std::vector<std::string>>;

// Reads OpenAI's {"type": "allowed_tools", "allowed_tools": {"mode": .., "tools": [{"type":
// "function", "function": {"name": ..}}]}}.
absl::StatusOr<AllowedTools> ReadAllowedTools(const JsonValue& choice, v1::ChatPrompt* chat) {
  const auto allowed = choice.FindNonNull("allowed_tools");
  if (!allowed) return MissingMember(choice, "allowed_tools");
  QUIRE_RETURN_IF_ERROR(CheckObject(*allowed));
  const auto mode = allowed->FindNonNull("mode");
  if (!mode) return MissingMember(*allowed, "mode");
  if (mode->raw() != "auto" && mode->raw() != "required") {
    return BadField(*mode, "must be auto or required");
  }
  chat->set_tool_choice(mode->raw() == "auto" ? v1::TOOL_CHOICE_AUTO : v1::TOOL_CHOICE_REQUIRED);
  const auto tools = allowed->FindNonNull("tools");
  if (!tools) return MissingMember(*allowed, "tools");
  QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
  if (tools->size() == 0) {
    return BadField(*tools, "must have at least one tool; send tool_choice none to allow no tool");
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(names.emplace_back(), ReadFunctionName(tools->At(i)));
  }
  return AllowedTools(std::move(names));
}

// Reads tool_choice: a string, {"type": "function", "function": {"name": ..}}, or allowed tools.
absl::StatusOr<AllowedTools> ReadToolChoice(const JsonFields& body, v1::ChatPrompt* chat) {
  const auto choice = body.Find("tool_choice");
  if (!choice) return AllowedTools();
  if (SetToolChoiceMode(*choice, chat)) return AllowedTools();
  const auto type = choice->is_object() ? choice->FindNonNull("type") : std::nullopt;
  if (type && type->raw() == "allowed_tools") return ReadAllowedTools(*choice, chat);
  if (!choice->is_object() || !choice->FindNonNull("function")) {
    return BadField(*choice, "must be none, auto, required, a function or allowed_tools");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string name, ReadFunctionName(*choice));
  chat->set_tool_choice(v1::TOOL_CHOICE_NAMED);
  chat->set_tool_name(name);
  return AllowedTools();
}

// Refuses an allowed name that is not the name of a declared tool.
absl::Status CheckAllowedTools(const std::vector<std::string>& allowed,
                               const absl::flat_hash_set<std::string>& declared) {
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (declared.contains(allowed[i])) continue;
    const std::string field =
        absl::StrCat("tool_choice.allowed_tools.tools[", i, "].function.name");
    return BadParameter(field, JsonQuoted(allowed[i].substr(0, 64)),
                        "the name of one of the tools");
  }
  return absl::OkStatus();
}

// Reads functions and function_call, the older spelling of tools and tool_choice. With this
// spelling an answer has at most one call.
absl::Status ReadFunctions(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat,
                           FieldNames* names) {
  const auto functions = body.Find("functions");
  const auto choice = body.Find("function_call");
  for (const char* key : {"tools", "tool_choice", "parallel_tool_calls"}) {
    if (body.Find(key)) {
      return BadField(functions ? *functions : *choice,
                      absl::StrCat("cannot be combined with ", key));
    }
  }
  if (!functions) return BadField(*choice, "needs the field functions");
  QUIRE_RETURN_IF_ERROR(CheckArray(*functions));
  const std::vector<absl::string_view> raw =
      formats::RawElements(formats::RawMember(bytes, "functions"));
  for (std::size_t i = 0; i < functions->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckFunction(functions->At(i)).status());
    chat->add_tools()->set_tool_json(
        absl::StrCat(R"({"type": "function", "function": )", raw[i], "}"));
  }
  chat->set_parallel_tool_calls(false);
  names->Set("chat.tools", "functions");
  names->Set("chat.tools[].tool_json", "functions[]");
  for (const char* member : {"name", "description", "parameters", "strict"}) {
    names->Set(absl::StrCat("chat.tools[].", member), absl::StrCat("functions[].", member));
  }
  names->Set("chat.tools[].parameters_json_schema", "functions[].parameters");
  names->Set("chat.tool_choice", "function_call");
  names->Set("chat.tool_name", "function_call.name");
  names->Set("chat.parallel_tool_calls", "functions");
  if (!choice) return absl::OkStatus();
  if (choice->is_object()) {
    if (!choice->FindNonNull("name")) return MissingMember(*choice, "name");
    chat->set_tool_choice(v1::TOOL_CHOICE_NAMED);
    return JsonFields(*choice).Text("name", [&](std::string name) { chat->set_tool_name(name); });
  }
  if (choice->raw() != "none" && choice->raw() != "auto") {
    return BadField(*choice, "must be none, auto or an object with the name of a function");
  }
  chat->set_tool_choice(choice->raw() == "none" ? v1::TOOL_CHOICE_NONE : v1::TOOL_CHOICE_AUTO);
  return absl::OkStatus();
}

absl::Status ReadTools(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat,
                       FieldNames* names) {
  if (body.Find("functions") || body.Find("function_call")) {
    return ReadFunctions(body, bytes, chat, names);
  }
  QUIRE_ASSIGN_OR_RETURN(const AllowedTools allowed, ReadToolChoice(body, chat));
  QUIRE_RETURN_IF_ERROR(body.Bool("parallel_tool_calls",
                                  [&](bool parallel) { chat->set_parallel_tool_calls(parallel); }));
  const auto tools = body.Find("tools");
  absl::flat_hash_set<std::string> wanted;
  if (allowed) wanted.insert(allowed->begin(), allowed->end());
  absl::flat_hash_set<std::string> declared;
  std::vector<std::size_t> indexes;
  if (tools) {
    QUIRE_RETURN_IF_ERROR(CheckArray(*tools));
    const std::vector<absl::string_view> raw =
        formats::RawElements(formats::RawMember(bytes, "tools"));
    for (std::size_t i = 0; i < tools->size(); ++i) {
      const JsonValue tool = tools->At(i);
      QUIRE_RETURN_IF_ERROR(ReadFunctionName(tool).status());
      QUIRE_ASSIGN_OR_RETURN(std::string name, CheckFunction(*tool.Find("function")));
      const bool is_wanted = !allowed || wanted.contains(name);
      declared.insert(std::move(name));
      if (!is_wanted) continue;
      indexes.push_back(i);
      chat->add_tools()->set_tool_json(std::string(raw[i]));
    }
    names->SetToolIndexes(std::move(indexes));
  }
  return allowed ? CheckAllowedTools(*allowed, declared) : absl::OkStatus();
}

void FillStruct(const json& object, google::protobuf::Struct* message);

// Converts JSON directly, because Protobuf's JSON parser takes a second per megabyte.
void FillValue(const json& value, google::protobuf::Value* message) {
  switch (value.type()) {
    case json::value_t::boolean:
      return message->set_bool_value(value.get<bool>());
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return message->set_number_value(value.get<double>());
    case json::value_t::string:
      return message->set_string_value(value.get_ref<const std::string&>());
    case json::value_t::array: {
      auto* const list = message->mutable_list_value();
      for (const json& element : value) FillValue(element, list->add_values());
      return;
    }
    case json::value_t::object:
      return FillStruct(value, message->mutable_struct_value());
    default:
      return message->set_null_value(google::protobuf::NULL_VALUE);
  }
}

void FillStruct(const json& object, google::protobuf::Struct* message) {
  for (const auto& [key, value] : object.get_ref<const json::object_t&>()) {
    FillValue(value, &(*message->mutable_fields())[key]);
  }
}

// Checks that the last message, which the model continues, has content. The content may be empty.
absl::Status CheckFinalMessage(const JsonValue& messages) {
  if (messages.size() == 0) return absl::OkStatus();
  const JsonValue last = messages.At(messages.size() - 1);
  if (JsonFields(last).Find("content")) return absl::OkStatus();
  const std::string path = last.PathOf("content");
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(path,
                                              " is missing, but continue_final_message is true; "
                                              "send the text to continue, which may be "
                                              "empty")),
      Reason::kBadParameter, {{"field", path}});
}

// Sets the template variable `name`, which is also a field of the API, to the field's value.
absl::Status SetVariable(const JsonFields& body, const std::string& name, const JsonValue& value,
                         v1::ChatPrompt* chat) {
  const auto vars = body.Find("chat_template_kwargs");
  const auto same = vars ? vars->FindNonNull(name) : std::nullopt;
  if (same && same->raw() != value.raw()) {
    return BadField(
        value, absl::StrCat("differs from chat_template_kwargs.", name, "; send only one of them"));
  }
  FillValue(value.raw(), &(*chat->mutable_template_vars()->mutable_fields())[name]);
  return absl::OkStatus();
}

// Reads reasoning_effort, enable_thinking and documents, which are variables of the template.
absl::Status ReadVariables(const JsonFields& body, v1::ChatPrompt* chat) {
  std::optional<bool> enable_thinking;
  QUIRE_RETURN_IF_ERROR(body.Bool("enable_thinking", &enable_thinking));
  if (enable_thinking) {
    QUIRE_RETURN_IF_ERROR(
        SetVariable(body, "enable_thinking", *body.Find("enable_thinking"), chat));
  }
  if (const auto value = body.Find("reasoning_effort")) {
    QUIRE_ASSIGN_OR_RETURN(const std::string effort, ReadReasoningEffort(*value));
    QUIRE_RETURN_IF_ERROR(SetVariable(body, "reasoning_effort", *value, chat));
    if (effort == "none") {
      if (enable_thinking.value_or(false))
        return BadField(*value, "is none, but enable_thinking is true");
      const json off = false;
      QUIRE_RETURN_IF_ERROR(
          SetVariable(body, "enable_thinking", JsonValue(off, value->path()), chat));
    }
  }
  const auto documents = body.Find("documents");
  if (!documents) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckArray(*documents));
  for (std::size_t i = 0; i < documents->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckObject(documents->At(i)));
  }
  return SetVariable(body, "documents", *documents, chat);
}

}  // namespace

bool SetToolChoiceMode(const JsonValue& choice, v1::ChatPrompt* chat) {
  for (const auto& [name, value] :
       {std::pair("none", v1::TOOL_CHOICE_NONE), std::pair("auto", v1::TOOL_CHOICE_AUTO),
        std::pair("required", v1::TOOL_CHOICE_REQUIRED)}) {
    if (choice.raw() != name) continue;
    chat->set_tool_choice(value);
    return true;
  }
  return false;
}

absl::StatusOr<std::string> ReadReasoningEffort(const JsonValue& value) {
  constexpr absl::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                            "high", "xhigh",   "max"};
  absl::StatusOr<std::string> effort = value.AsString();
  if (!effort.ok()) return NameField(effort.status(), value);
  if (std::ranges::find(kEfforts, *effort) != std::end(kEfforts)) return effort;
  return BadField(value, absl::StrCat("must be one of ", absl::StrJoin(kEfforts, ", ")));
}

absl::Status ReadChatPrompt(const JsonFields& body, absl::string_view bytes, v1::ChatPrompt* chat,
                            FieldNames* names) {
  const auto messages = body.Find("messages");
  if (!messages) return MissingInput("messages");
  QUIRE_RETURN_IF_ERROR(CheckArray(*messages));
  for (std::size_t i = 0; i < messages->size(); ++i) {
    QUIRE_RETURN_IF_ERROR(ReadMessage(messages->At(i), chat->add_messages()));
  }
  PairFunctionCalls(*messages, chat);
  QUIRE_RETURN_IF_ERROR(ReadTools(body, bytes, chat, names));
  QUIRE_RETURN_IF_ERROR(
      body.Bool("add_generation_prompt", [&](bool add) { chat->set_add_generation_prompt(add); }));
  QUIRE_RETURN_IF_ERROR(body.Bool("continue_final_message",
                                  [&](bool open) { chat->set_continue_final_message(open); }));
  if (chat->continue_final_message()) QUIRE_RETURN_IF_ERROR(CheckFinalMessage(*messages));
  QUIRE_RETURN_IF_ERROR(body.Text("chat_template", chat->mutable_template_text()));
  if (const auto text = body.Find("chat_template"); text && chat->template_text().empty()) {
    return BadField(*text, "is empty; omit it to use the template of the model");
  }
  if (const auto vars = body.Find("chat_template_kwargs")) {
    QUIRE_RETURN_IF_ERROR(CheckObject(*vars));
    FillStruct(vars->raw(), chat->mutable_template_vars());
  }
  return ReadVariables(body, chat);
}

}  // namespace quire::server
