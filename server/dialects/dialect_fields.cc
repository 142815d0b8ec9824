#include "server/dialects/dialect_fields.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "formats/ordered_json.h"
#include "server/openai/chat_messages.h"
#include "server/openai/json_fields.h"

namespace quire::server {

using formats::JsonValue;

absl::StatusOr<std::string> TypeOf(const JsonValue& object, absl::string_view absent) {
  QUIRE_RETURN_IF_ERROR(CheckObject(object));
  if (!absent.empty() && !object.FindNonNull("type")) return std::string(absent);
  return RequiredText(object, "type");
}

absl::Status UnsupportedType(const JsonValue& object, absl::string_view type,
                             absl::string_view remedy) {
  return BadField(*object.FindNonNull("type"), absl::StrCat("is ", JsonQuoted(type.substr(0, 40)),
                                                            ", which is not supported; ", remedy));
}

absl::Status SetSchema(const JsonValue& schema, absl::string_view raw, v1::GenerateRequest* request,
                       FieldNames* names) {
  QUIRE_RETURN_IF_ERROR(CheckObject(schema));
  names->SetConstraint(schema.path());
  request->mutable_constraint()->set_json_schema(CompactJson(raw));
  return absl::OkStatus();
}

absl::Status SetReasoningEffort(const JsonValue& effort, v1::ChatPrompt* chat) {
  QUIRE_ASSIGN_OR_RETURN(const std::string word, ReadReasoningEffort(effort));
  auto& variables = *chat->mutable_template_vars()->mutable_fields();
  variables["reasoning_effort"].set_string_value(word);
  if (word != "none") return absl::OkStatus();
  google::protobuf::Value& thinks = variables["enable_thinking"];
  if (thinks.bool_value()) {
    return BadField(effort, "is none, but thinking is enabled; change one of them");
  }
  thinks.set_bool_value(false);
  return absl::OkStatus();
}

std::string CompactJson(absl::string_view raw) {
  return formats::OrderedText(formats::OrderedJson::parse(raw.begin(), raw.end()));
}

std::string NamedEvent(absl::string_view name, absl::string_view json) {
  return absl::StrCat("event: ", name, "\ndata: ", json, "\n\n");
}

void MoveSinglePartsToContent(v1::ChatPrompt* chat) {
  for (v1::ChatMessage& message : *chat->mutable_messages()) {
    if (message.parts_size() != 1) continue;
    message.set_content(std::move(*message.mutable_parts(0)->mutable_text()));
    message.clear_parts();
  }
}

}  // namespace quire::server
