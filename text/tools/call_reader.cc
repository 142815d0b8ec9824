#include "text/tools/call_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "formats/json_value.h"
#include "text/tools/json_object_writer.h"
#include "text/tools/json_tracker.h"
#include "text/tools/python_call.h"

namespace quire::text {
namespace {

using formats::JsonDocument;

constexpr absl::string_view kFunction = "<function=";
constexpr absl::string_view kParameter = "<parameter=", kEndParameter = "</parameter>";
constexpr absl::string_view kKey = "<arg_key>", kEndKey = "</arg_key>";
constexpr absl::string_view kValue = "<arg_value>", kEndValue = "</arg_value>";

ToolCall Error(absl::string_view error, absl::string_view name = {}) {
  return {.name = std::string(name), .arguments_json = {}, .error = std::string(error)};
}

absl::string_view Trimmed(absl::string_view text) {
  return absl::StripAsciiWhitespace(text);
}

// Removes the text up to and including `mark`, and returns the part before `mark`. Returns nullopt
// if there is no `mark`.
std::optional<absl::string_view> TakeUntil(absl::string_view mark, absl::string_view* text) {
  const std::size_t at = text->find(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view before = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return before;
}

// Converts functions.NAME:INDEX to NAME. The parts `functions.` and `:INDEX` may be missing.
absl::string_view FunctionName(absl::string_view name) {
  absl::ConsumePrefix(&name, "functions.");
  const std::size_t colon = name.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == name.size()) return name;
  const bool is_index = name.find_first_not_of("0123456789", colon + 1) == absl::string_view::npos;
  return is_index ? name.substr(0, colon) : name;
}

ToolCall ReadNameThenJson(absl::string_view text, const ToolFormat& format,
                          const DeclaredTools& tools) {
  text = Trimmed(text);
  if (!absl::ConsumePrefix(&text, format.name_prefix)) return Error("bad_call");
  absl::string_view arguments = text;
  std::optional<absl::string_view> name = TakeUntil(format.separator, &arguments);
  if (!name && format.is_separator_optional) {
    const std::size_t brace = text.find('{');
    if (brace != absl::string_view::npos) {
      name = text.substr(0, brace);
      arguments = text.substr(brace);
    }
  }
  if (!name) return Error("bad_call");
  if (!format.id_marker.empty()) name = name->substr(0, name->find(format.id_marker));
  name = Trimmed(*name);
  if (format.has_function_index) name = FunctionName(*name);
  arguments = Trimmed(arguments);
  if (!absl::ConsumeSuffix(&arguments, format.arguments_suffix)) return Error("bad_call", *name);
  return ReadNamedCall(*name, Trimmed(arguments), tools);
}

// Removes one newline at each end of a value. These newlines belong to the tags.
absl::string_view WithoutEdgeNewlines(absl::string_view value) {
  absl::ConsumePrefix(&value, "\n");
  absl::ConsumeSuffix(&value, "\n");
  return value;
}

// Removes and returns a value. A value may contain the closing tag. The value therefore ends only
// at a closing tag before another parameter or before the end of the function. If the model omitted
// the closing tag, the value ends at the next parameter.
absl::string_view TakeParameterValue(absl::string_view* text) {
  for (std::size_t at = 0; (at = text->find('<', at)) != absl::string_view::npos; ++at) {
    absl::string_view rest = text->substr(at);
    absl::string_view value = text->substr(0, at);
    if (absl::ConsumePrefix(&rest, kEndParameter)) {
      rest = Trimmed(rest);
      if (!rest.empty() && !absl::StartsWith(rest, kParameter)) continue;
    } else if (!absl::StartsWith(rest, kParameter) || !absl::ConsumeSuffix(&value, "\n")) {
      continue;
    }
    *text = rest;
    return value;
  }
  return std::exchange(*text, {});
}

ToolCall ReadXmlParameters(absl::string_view text, const DeclaredTools& tools) {
  text = Trimmed(text);
  if (!absl::ConsumePrefix(&text, kFunction)) return Error("bad_call");
  const std::optional<absl::string_view> name = TakeUntil(">", &text);
  if (!name || !absl::ConsumeSuffix(&text, kEndFunction)) return Error("bad_call");
  const std::string tool(Trimmed(*name));
  if (!tools.Has(tool)) return Error("undeclared_tool", tool);
  text = Trimmed(text);
  JsonObjectWriter arguments;
  while (!text.empty()) {
    std::optional<absl::string_view> key;
    if (absl::ConsumePrefix(&text, kParameter)) key = TakeUntil(">", &text);
    if (!key) return Error("bad_arguments", tool);
    const std::string parameter(Trimmed(*key));
    arguments.Set(
        JsonQuoted(parameter),
        tools.JsonOfValue(tool, parameter, WithoutEdgeNewlines(TakeParameterValue(&text))));
  }
  return {.name = tool, .arguments_json = arguments.Text(), .error = {}};
}

ToolCall ReadKeyValues(absl::string_view text, const DeclaredTools& tools) {
  const std::size_t end_of_name = std::min(text.find(kKey), text.size());
  const std::string tool(Trimmed(text.substr(0, end_of_name)));
  if (tool.empty()) return Error("bad_call");
  if (!tools.Has(tool)) return Error("undeclared_tool", tool);
  text = Trimmed(text.substr(end_of_name));
  JsonObjectWriter arguments;
  while (!text.empty()) {
    std::optional<absl::string_view> key, value;
    if (absl::ConsumePrefix(&text, kKey)) key = TakeUntil(kEndKey, &text);
    text = Trimmed(text);
    if (absl::ConsumePrefix(&text, kValue)) value = TakeUntil(kEndValue, &text);
    if (!key || !value) return Error("bad_arguments", tool);
    const std::string parameter(Trimmed(*key));
    arguments.Set(JsonQuoted(parameter), tools.JsonOfValue(tool, parameter, *value));
    text = Trimmed(text);
  }
  return {.name = tool, .arguments_json = arguments.Text(), .error = {}};
}

}  // namespace

ToolCall ReadObjectCall(absl::string_view object, const DeclaredTools& tools) {
  object = Trimmed(object);
  const auto document = JsonDocument::Parse(object);
  if (!document.ok()) return Error("bad_arguments");
  if (!document->root().is_object()) return Error("bad_call");
  const auto name = document->root().Find("name");
  if (!name || !name->is_string()) return Error("bad_call");
  const std::string tool = *name->AsString();
  for (const auto& [key, value] : JsonMembers(object)) {
    if (key == "arguments" || key == "parameters") return ReadNamedCall(tool, value, tools);
  }
  // JsonMembers returns keys undecoded, so a key that is written with escapes was not found above.
  if (document->root().Find("arguments") || document->root().Find("parameters")) {
    return Error("bad_arguments", tool);
  }
  return ReadNamedCall(tool, "{}", tools);
}

bool LooksLikeCall(absl::string_view object) {
  const auto document = JsonDocument::Parse(object);
  if (!document.ok()) return true;
  const formats::JsonValue root = document->root();
  if (!root.is_object()) return false;
  const auto name = root.Find("name");
  return name && name->is_string() && (root.Find("arguments") || root.Find("parameters"));
}

ToolCall ReadNamedCall(absl::string_view name, absl::string_view arguments,
                       const DeclaredTools& tools) {
  if (!tools.Has(name)) return Error("undeclared_tool", name);
  const auto document = JsonDocument::Parse(arguments);
  if (!document.ok() || !document->root().is_object()) return Error("bad_arguments", name);
  return {.name = std::string(name), .arguments_json = std::string(arguments), .error = {}};
}

ToolCall ReadMarkedCall(absl::string_view call, const ToolFormat& format,
                        const DeclaredTools& tools) {
  if (!absl::ConsumePrefix(&call, format.call_begin[0])) {
    // In an XML call, the second marker is the tag <function=, which ReadXmlParameters needs.
    if (format.shape != CallShape::kXmlParameters) {
      absl::ConsumePrefix(&call, format.call_begin[1]);
    }
  }
  const bool is_closed = absl::ConsumeSuffix(&call, format.call_end);
  switch (format.shape) {
    case CallShape::kNameThenJson:
      return ReadNameThenJson(call, format, tools);
    case CallShape::kXmlParameters:
      return ReadXmlParameters(call, tools);
    case CallShape::kKeyValues:
      return is_closed ? ReadKeyValues(call, tools) : Error("bad_call");
    default:
      return ReadObjectCall(call, tools);
  }
}

ToolCall ReadPythonToolCall(absl::string_view call, const DeclaredTools& tools) {
  const absl::string_view name = Trimmed(call.substr(0, call.find('(')));
  if (!tools.Has(name)) return Error("undeclared_tool", name);
  auto read = ReadPythonCall(Trimmed(call));
  if (!read.ok()) return Error("bad_arguments", name);
  return {.name = std::move(read->first), .arguments_json = std::move(read->second), .error = {}};
}

}  // namespace quire::text
