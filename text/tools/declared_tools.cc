#include "text/tools/declared_tools.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "formats/json_value.h"

namespace quire::text {
namespace {

using formats::JsonDocument;
using formats::JsonValue;

}  // namespace

absl::StatusOr<DeclaredTools> DeclaredTools::Create(std::span<const ChatTool> tools) {
  // Of a `type`: one name or several. Absent, or said in another way (anyOf, $ref): any.
  const auto types_of = [](const JsonValue& schema) -> std::uint8_t {
    static const HashMap<absl::string_view, std::uint8_t> kNames = {
        {"string", kString}, {"number", kNumber}, {"integer", kNumber}, {"boolean", kBoolean},
        {"null", kNull},     {"array", kArray},   {"object", kObject}};
    const auto type = schema.is_object() ? schema.Find("type") : std::nullopt;
    if (!type) return kAny;
    std::uint8_t types = 0;
    const auto add = [&](const JsonValue& name) {
      const auto found = name.is_string() ? kNames.find(*name.AsString()) : kNames.end();
      types |= found == kNames.end() ? static_cast<std::uint8_t>(kAny) : found->second;
    };
    if (!type->is_array()) {
      add(*type);
    } else {
      for (std::size_t i = 0; i < type->size(); ++i) add(type->At(i));
    }
    return types;
  };
  DeclaredTools declared;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string where = absl::StrCat("tools[", i, "]");
    if (tools[i].name.empty()) return absl::InvalidArgumentError(where + " has no name");
    Parameters parameters;
    if (!tools[i].parameters_json.empty()) {
      const auto schema = JsonDocument::Parse(tools[i].parameters_json);
      if (!schema.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ".parameters: ", schema.status().message()));
      }
      if (!schema->root().is_object()) {
        return absl::InvalidArgumentError(where + ".parameters must be an object");
      }
      const auto properties = schema->root().Find("properties");
      if (properties && properties->is_object()) {
        for (const auto& [name, value] : properties->raw().items()) {
          parameters.emplace(name, types_of(JsonValue(value, name)));
        }
      }
    }
    if (!declared.tools_.emplace(tools[i].name, std::move(parameters)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " has the name ", JsonQuoted(tools[i].name), ", as another one"));
    }
  }
  return declared;
}

std::string DeclaredTools::JsonOfValue(absl::string_view tool, absl::string_view parameter,
                                       absl::string_view value) const {
  const Parameters& parameters = tools_.find(tool)->second;
  const auto found = parameters.find(parameter);
  const std::uint8_t types = found == parameters.end() ? std::uint8_t{kString} : found->second;
  if (types == kString) return JsonQuoted(value);
  const auto document = JsonDocument::Parse(value);
  if (!document.ok()) return JsonQuoted(value);
  const JsonValue root = document->root();
  if (root.is_string()) return types == kAny ? std::string(value) : JsonQuoted(value);
  // A number where an object is wanted is passed on as a number: what the model wrote.
  if ((types & kString) == 0 || types == kAny)
    return std::string(absl::StripAsciiWhitespace(value));
  const Types kind = root.is_null()     ? kNull
                     : root.is_number() ? kNumber
                     : root.is_array()  ? kArray
                     : root.is_object() ? kObject
                                        : kBoolean;
  return (types & kind) != 0 ? std::string(absl::StripAsciiWhitespace(value)) : JsonQuoted(value);
}

}  // namespace quire::text
