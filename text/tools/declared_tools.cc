#include "text/tools/declared_tools.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "formats/json_value.h"

namespace quire::text {

absl::StatusOr<DeclaredTools> DeclaredTools::Create(std::span<const ChatTool> tools,
                                                    bool values_are_text) {
  DeclaredTools declared;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string field = absl::StrCat("tools[", i, "]");
    if (tools[i].name.empty()) return absl::InvalidArgumentError(field + " has no name");
    std::shared_ptr<const ArgumentSchema> parameters;
    if (!tools[i].parameters_json.empty()) {
      auto schema = formats::JsonDocument::Parse(tools[i].parameters_json);
      if (!schema.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(field, ".parameters: ", schema.status().message()));
      }
      if (!schema->root().is_object()) {
        return absl::InvalidArgumentError(field + ".parameters must be an object");
      }
      if (values_are_text) parameters = std::make_shared<const ArgumentSchema>(*std::move(schema));
    }
    if (!declared.tools_.emplace(tools[i].name, std::move(parameters)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " has the name ", JsonQuoted(tools[i].name),
                       ", which is already used by an earlier tool; names must be unique"));
    }
  }
  return declared;
}

std::string DeclaredTools::JsonOfValue(absl::string_view tool, absl::string_view parameter,
                                       absl::string_view value) const {
  const std::shared_ptr<const ArgumentSchema>& parameters = tools_.find(tool)->second;
  return parameters == nullptr ? JsonQuoted(value) : parameters->JsonOf(parameter, value);
}

}  // namespace quire::text
