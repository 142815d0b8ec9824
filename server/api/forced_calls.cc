#include "server/api/forced_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "engine/constraint/schema_check.h"
#include "formats/ordered_json.h"
#include "quire/v1/chat.pb.h"
#include "server/api/status_mapping.h"
#include "text/tools/tool_format.h"

namespace quire::server {
namespace {

using formats::OrderedJson;

// Parameters of a tool that declares none.
constexpr absl::string_view kNoParameters = R"({"type": "object", "additionalProperties": false})";

// Parameters of a tool that is not strict.
constexpr absl::string_view kAnyArguments = R"({"type": "object"})";

// Returns true if the schema declares all required properties, and its only other keywords are
// annotations. Additional properties can then be forbidden without excluding a valid call.
bool DeclaresArguments(const OrderedJson& schema) {
  constexpr absl::string_view kNeutralKeys[] = {"type", "properties", "required", "$schema", "$id"};
  for (const auto& [key, value] : schema.items()) {
    const bool is_neutral = std::ranges::find(kNeutralKeys, key) != std::end(kNeutralKeys);
    if (!is_neutral && !engine::IsSchemaAnnotation(key)) return false;
  }
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return false;
  const auto required = schema.find("required");
  if (required == schema.end()) return true;
  std::set<std::string> declared;
  for (const auto& [name, property] : properties->items()) declared.insert(name);
  return required->is_array() && std::ranges::all_of(*required, [&](const OrderedJson& name) {
           return name.is_string() && declared.contains(name.get<std::string>());
         });
}

// Returns the schema that the arguments of a call must match: `parameters`, restricted to objects.
// If DeclaresArguments is true, the result forbids additional properties, because a constrained
// answer could contain an additional property twice. Keys keep their order. REQUIRES: `parameters`
// is a JSON object or empty.
absl::StatusOr<std::string> MakeArgumentsSchema(const std::string& parameters,
                                                const std::string& field) {
  if (parameters.empty()) return std::string(kNoParameters);
  auto schema = OrderedJson::parse(parameters);
  const auto type = schema.find("type");
  if (type == schema.end() || *type == "object" ||
      (type->is_array() && std::ranges::find(*type, "object") != type->end())) {
    if (type == schema.end()) {
      schema["type"] = "object";
    } else {
      *type = "object";
    }
    if (DeclaresArguments(schema)) schema["additionalProperties"] = false;
    return formats::OrderedText(schema);
  }
  return WithReason(
      absl::InvalidArgumentError(
          absl::StrCat(field, ": /type: is ", formats::OrderedText(*type), ", it must be object")),
      Reason::kBadConstraint,
      {{"stage", "compile"}, {"pointer", "/type"}, {"keyword", "type"}, {"field", field}});
}

absl::StatusOr<engine::ConstraintTag> ToTag(const text::ChatTool& tool, std::size_t index) {
  engine::ConstraintTag tag{
      .begin = tool.name, .field = absl::StrCat("chat.tools[", index, "].parameters_json_schema")};
  QUIRE_ASSIGN_OR_RETURN(tag.text, MakeArgumentsSchema(tool.parameters_json, tag.field));
  return tag;
}

engine::ConstraintSpec MakeCallSpec(const text::ToolFormat& format, bool has_reasoning) {
  engine::ConstraintSpec spec;
  spec.kind = engine::ConstraintKind::kToolCalls;
  spec.tool_format = &format;
  spec.starts_after_reasoning = has_reasoning || format.name != text::kGenericFormat;
  spec.start_depends_on_prompt = true;
  return spec;
}

}  // namespace

bool ForcesCalls(const v1::ChatPrompt& chat) {
  return chat.tool_choice() == v1::TOOL_CHOICE_REQUIRED ||
         chat.tool_choice() == v1::TOOL_CHOICE_NAMED;
}

absl::StatusOr<engine::ConstraintSpec> ToForcedCalls(const v1::ChatPrompt& chat,
                                                     const text::ChatInput& input,
                                                     const text::ToolFormat* format,
                                                     bool has_reasoning) {
  if (format == nullptr || !format->can_be_forced()) {
    return FeatureUnsupported(
        format == nullptr
            ? "a forced tool call with a model that has no tool-call format (chat.tool_format)"
            : absl::StrCat("a forced tool call in the format ", format->name),
        "chat.tool_choice");
  }
  const bool is_named = chat.tool_choice() == v1::TOOL_CHOICE_NAMED;
  engine::ConstraintSpec spec = MakeCallSpec(*format, has_reasoning);
  spec.stop_after_first_tag =
      is_named || (chat.has_parallel_tool_calls() && !chat.parallel_tool_calls());
  for (std::size_t i = 0; i < input.tools.size(); ++i) {
    if (is_named && input.tools[i].name != chat.tool_name()) continue;
    QUIRE_ASSIGN_OR_RETURN(engine::ConstraintTag tag, ToTag(input.tools[i], i));
    spec.tags.push_back(std::move(tag));
  }
  return spec;
}

bool ConstrainsCalls(const v1::ChatPrompt& chat, const text::ChatInput& input) {
  return chat.tool_choice() != v1::TOOL_CHOICE_NONE && !ForcesCalls(chat) &&
         std::ranges::any_of(input.tools, &text::ChatTool::strict);
}

absl::StatusOr<engine::ConstraintSpec> ToConstrainedCalls(const text::ChatInput& input,
                                                          const text::ToolFormat& format,
                                                          bool has_reasoning) {
  engine::ConstraintSpec spec = MakeCallSpec(format, has_reasoning);
  spec.calls_are_optional = true;
  for (std::size_t i = 0; i < input.tools.size(); ++i) {
    const bool is_strict = input.tools[i].strict;
    const std::string field = absl::StrCat("chat.tools[", i, "].strict");
    if (is_strict && (format.trigger().empty() || !format.can_be_forced())) {
      return FeatureUnsupported(
          absl::StrCat("a strict tool with tool_choice auto in the format ", format.name), field);
    }
    if (!is_strict && !format.writing.key_begin.empty()) {
      return FeatureUnsupported(
          absl::StrCat("a tool that is not strict together with a strict tool in the format ",
                       format.name),
          field);
    }
    text::ChatTool tool = input.tools[i];
    if (!is_strict) tool.parameters_json = std::string(kAnyArguments);
    QUIRE_ASSIGN_OR_RETURN(engine::ConstraintTag tag, ToTag(tool, i));
    spec.tags.push_back(std::move(tag));
  }
  return spec;
}

}  // namespace quire::server
