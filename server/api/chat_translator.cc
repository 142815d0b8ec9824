#include "server/api/chat_translator.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/json_text.h"
#include "base/status.h"
#include "formats/json_value.h"
#include "formats/raw_json.h"
#include "quire/v1/chat.pb.h"

namespace quire::server {
namespace {

constexpr int kMaxMessages = 4096;
constexpr int kMaxTools = 256;
constexpr std::size_t kMaxNameBytes = 64;

absl::Status BadChatInput(const v1::ChatPrompt& chat, absl::string_view text,
                          absl::string_view field = {}) {
  std::vector<std::pair<std::string, std::string>> metadata = {
      {"template_name", chat.template_name().substr(0, kMaxNameBytes)}, {"line", "0"}};
  if (!field.empty()) metadata.emplace_back("field", field);
  return WithReason(absl::InvalidArgumentError(text), Reason::kBadChatTemplateInput, metadata);
}

bool IsFunctionName(const std::string& name) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), is_plain);
}

// Writes chat.template_vars as JSON text for the renderer. Stops at the first exceeded limit.
class VarsWriter {
 public:
  explicit VarsWriter(const text::jinja::JsonLimits& limits) : limits_(limits) {}

  // The fields of a Struct are unordered, so they are sorted by name: equal requests render equal
  // prompts.
  absl::Status Write(const google::protobuf::Struct& message, int depth) {
    QUIRE_RETURN_IF_ERROR(CheckDepth(depth));
    std::vector<std::pair<absl::string_view, const google::protobuf::Value*>> fields;
    fields.reserve(message.fields().size());
    for (const auto& [key, value] : message.fields()) fields.emplace_back(key, &value);
    std::sort(fields.begin(), fields.end());
    absl::string_view separator = "{";
    for (const auto& [key, value] : fields) {
      absl::StrAppend(&json_, separator, JsonQuoted(key), ":");
      QUIRE_RETURN_IF_ERROR(CountNode());
      QUIRE_RETURN_IF_ERROR(Write(*value, depth));
      separator = ",";
    }
    json_ += separator == "{" ? "{}" : "}";
    return absl::OkStatus();
  }

  std::string Take() { return std::move(json_); }

 private:
  absl::Status Write(const google::protobuf::Value& value, int depth) {
    using google::protobuf::Value;
    QUIRE_RETURN_IF_ERROR(CountNode());
    switch (value.kind_case()) {
      case Value::kBoolValue:
        json_ += value.bool_value() ? "true" : "false";
        return absl::OkStatus();
      case Value::kStringValue:
        json_ += JsonQuoted(value.string_value());
        return absl::OkStatus();
      case Value::kStructValue:
        return Write(value.struct_value(), depth + 1);
      case Value::kNumberValue:
        return Write(value.number_value());
      case Value::kListValue:
        return Write(value.list_value(), depth + 1);
      default:
        json_ += "null";
        return absl::OkStatus();
    }
  }

  absl::Status Write(const google::protobuf::ListValue& list, int depth) {
    QUIRE_RETURN_IF_ERROR(CheckDepth(depth));
    absl::string_view separator = "[";
    for (const google::protobuf::Value& item : list.values()) {
      absl::StrAppend(&json_, separator);
      QUIRE_RETURN_IF_ERROR(Write(item, depth));
      separator = ",";
    }
    json_ += separator == "[" ? "[]" : "]";
    return absl::OkStatus();
  }

  // Writes whole numbers as integers. A Struct has only doubles, but clients mean integers.
  absl::Status Write(double number) {
    constexpr double kMaxExactInteger = 9007199254740992.0;  // 2^53
    if (!std::isfinite(number)) {
      return absl::InvalidArgumentError("chat.template_vars has a number that is not finite");
    }
    if (number == std::floor(number) && std::abs(number) <= kMaxExactInteger) {
      absl::StrAppend(&json_, static_cast<std::int64_t>(number));
    } else {
      json_ += JsonText(nlohmann::json(number));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDepth(int depth) const {
    if (depth <= limits_.max_depth) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("chat.template_vars is nested more than ",
                                                   limits_.max_depth,
                                                   " deep (limits.max_json_depth)"));
  }

  // Counts one key or value and checks the limits.
  absl::Status CountNode() {
    if (++nodes_ > limits_.max_nodes) {
      return absl::InvalidArgumentError(absl::StrCat("chat.template_vars has more than ",
                                                     limits_.max_nodes,
                                                     " keys and values (limits.max_json_nodes)"));
    }
    if (static_cast<std::int64_t>(json_.size()) <= limits_.max_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("chat.template_vars has more than ",
                                                   limits_.max_bytes,
                                                   " bytes of JSON (limits.max_json_bytes)"));
  }

  const text::jinja::JsonLimits limits_;
  std::int64_t nodes_ = 0;
  std::string json_;
};

absl::Status CheckCounts(const v1::ChatPrompt& chat) {
  if (chat.messages().empty() || chat.messages_size() > kMaxMessages) {
    return BadChatInput(chat,
                        absl::StrCat("chat.messages has ", chat.messages_size(), " messages, 1 to ",
                                     kMaxMessages, " are allowed"),
                        "chat.messages");
  }
  if (chat.tools_size() > kMaxTools) {
    return BadChatInput(chat,
                        absl::StrCat("chat.tools has ", chat.tools_size(), " tools, at most ",
                                     kMaxTools, " are allowed"),
                        "chat.tools");
  }
  if (chat.template_name().size() > kMaxNameBytes) {
    return BadChatInput(chat,
                        absl::StrCat("chat.template_name has ", chat.template_name().size(),
                                     " bytes, at most ", kMaxNameBytes, " are allowed"),
                        "chat.template_name");
  }
  if (!chat.template_text().empty() && !chat.template_name().empty()) {
    return BadChatInput(
        chat, "chat.template_text cannot be combined with chat.template_name; omit one of them",
        "chat.template_text");
  }
  if (chat.continue_final_message() && chat.has_add_generation_prompt() &&
      chat.add_generation_prompt()) {
    return BadChatInput(
        chat,
        "chat.continue_final_message is true, so chat.add_generation_prompt must be false or "
        "unset",
        "chat.continue_final_message");
  }
  return absl::OkStatus();
}

absl::Status CheckToolChoice(const v1::ChatPrompt& chat, const std::vector<text::ChatTool>& tools) {
  const bool is_named = chat.tool_choice() == v1::TOOL_CHOICE_NAMED;
  if (!is_named && !chat.tool_name().empty()) {
    return BadChatInput(chat, "chat.tool_name needs chat.tool_choice TOOL_CHOICE_NAMED",
                        "chat.tool_name");
  }
  if (!v1::ToolChoice_IsValid(chat.tool_choice())) {
    return BadChatInput(
        chat, absl::StrCat("chat.tool_choice is ", chat.tool_choice(), ", it must be 0 to 4"),
        "chat.tool_choice");
  }
  if (!is_named && chat.tool_choice() != v1::TOOL_CHOICE_REQUIRED) return absl::OkStatus();
  if (tools.empty()) {
    return BadChatInput(chat, "chat.tool_choice needs tools, but the request has none",
                        "chat.tool_choice");
  }
  if (!is_named) return absl::OkStatus();
  for (const text::ChatTool& tool : tools) {
    if (tool.name == chat.tool_name()) return absl::OkStatus();
  }
  return BadChatInput(chat,
                      absl::StrCat("chat.tool_name is \"",
                                   absl::CHexEscape(chat.tool_name().substr(0, kMaxNameBytes)),
                                   "\", but no tool has this name"),
                      "chat.tool_name");
}

text::ChatMessage ToMessage(const v1::ChatMessage& message) {
  text::ChatMessage result{.role = message.role(),
                           .content = message.content(),
                           .name = message.name(),
                           .tool_calls = {},
                           .tool_call_id = message.tool_call_id(),
                           .reasoning_content = message.reasoning_content(),
                           .parts = {}};
  for (const v1::ContentPart& part : message.parts()) result.parts.push_back(part.text());
  for (const v1::ToolCall& call : message.tool_calls()) {
    result.tool_calls.push_back(
        {.id = call.id(), .name = call.name(), .arguments_json = call.arguments_json()});
  }
  return result;
}

// Reads the members of tool_json that the server uses.
absl::StatusOr<text::ChatTool> ReadToolJson(const v1::ChatPrompt& chat, const v1::ToolSpec& spec,
                                            const std::string& field,
                                            const text::jinja::JsonLimits& limits) {
  const auto bad = [&](absl::string_view problem) {
    return BadChatInput(chat, absl::StrCat(field, " ", problem), field);
  };
  if (!spec.name().empty() || !spec.description().empty() ||
      !spec.parameters_json_schema().empty() || spec.strict()) {
    return bad("is set, so name, description, parameters_json_schema and strict must be unset");
  }
  const auto document = formats::JsonDocument::Parse(
      spec.tool_json(), {.max_depth = limits.max_depth, .max_nodes = limits.max_nodes});
  if (!document.ok()) return bad(absl::StrCat("is not JSON: ", document.status().message()));
  const formats::JsonValue root = document->root();
  const auto function = root.is_object() ? root.FindNonNull("function") : std::nullopt;
  if (!function || !function->is_object()) return bad("must be an object with the member function");
  text::ChatTool tool;
  tool.json = spec.tool_json();
  for (const auto& [key, text] :
       {std::pair("name", &tool.name), std::pair("description", &tool.description)}) {
    const auto member = function->GetOptionalString(key);
    if (!member.ok()) return bad(absl::StrCat("is not valid: ", member.status().message()));
    *text = member->value_or("");
  }
  const auto strict = function->GetBoolOr("strict", false);
  if (!strict.ok()) return bad(absl::StrCat("is not valid: ", strict.status().message()));
  tool.strict = *strict;
  if (const auto parameters = function->FindNonNull("parameters")) {
    if (!parameters->is_object()) return bad("must have an object as function.parameters");
    tool.parameters_json =
        std::string(formats::RawMember(formats::RawMember(tool.json, "function"), "parameters"));
  }
  return tool;
}

absl::StatusOr<text::ChatTool> ReadTool(const v1::ChatPrompt& chat, int index,
                                        const text::jinja::JsonLimits& limits) {
  const v1::ToolSpec& spec = chat.tools(index);
  const std::string field = absl::StrCat("chat.tools[", index, "]");
  text::ChatTool tool;
  if (spec.tool_json().empty()) {
    tool = {.name = spec.name(),
            .description = spec.description(),
            .parameters_json = spec.parameters_json_schema(),
            .strict = spec.strict()};
  } else {
    QUIRE_ASSIGN_OR_RETURN(tool,
                           ReadToolJson(chat, spec, absl::StrCat(field, ".tool_json"), limits));
  }
  if (IsFunctionName(tool.name)) return tool;
  return BadChatInput(
      chat,
      absl::StrCat(field, ".name is \"", absl::CHexEscape(tool.name.substr(0, kMaxNameBytes)),
                   "\", it must be 1 to ", kMaxNameBytes, " characters of [A-Za-z0-9_-]"),
      absl::StrCat(field, ".name"));
}

}  // namespace

absl::StatusOr<text::ChatInput> ToChatInput(const v1::ChatPrompt& chat,
                                            const text::jinja::JsonLimits& limits) {
  QUIRE_RETURN_IF_ERROR(CheckCounts(chat));
  text::ChatInput input;
  input.template_name = chat.template_name();
  input.template_text = chat.template_text();
  input.continue_final_message = chat.continue_final_message();
  input.add_generation_prompt = chat.has_add_generation_prompt() ? chat.add_generation_prompt()
                                                                 : !chat.continue_final_message();
  for (int i = 0; i < chat.messages_size(); ++i) {
    const std::size_t size = chat.messages(i).role().size();
    if (size == 0 || size > kMaxNameBytes) {
      const std::string field = absl::StrCat("chat.messages[", i, "].role");
      return BadChatInput(
          chat, absl::StrCat(field, " has ", size, " bytes, 1 to ", kMaxNameBytes, " are allowed"),
          field);
    }
    if (!chat.messages(i).content().empty() && !chat.messages(i).parts().empty()) {
      const std::string field = absl::StrCat("chat.messages[", i, "]");
      return BadChatInput(chat, absl::StrCat(field, " has both content and parts; set only one"),
                          field);
    }
    input.messages.push_back(ToMessage(chat.messages(i)));
  }
  for (int i = 0; i < chat.tools_size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(text::ChatTool tool, ReadTool(chat, i, limits));
    input.tools.push_back(std::move(tool));
  }
  QUIRE_RETURN_IF_ERROR(CheckToolChoice(chat, input.tools));
  if (chat.tool_choice() == v1::TOOL_CHOICE_NONE) input.tools.clear();
  if (chat.has_template_vars()) {
    VarsWriter writer(limits);
    const absl::Status written = writer.Write(chat.template_vars(), 1);
    if (!written.ok()) return BadChatInput(chat, written.message(), "chat.template_vars");
    input.template_vars_json = writer.Take();
  }
  return input;
}

}  // namespace quire::server
