#include "tools/quire/message_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"

namespace quire::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using nlohmann::ordered_json;

constexpr std::int64_t kMaxExactInteger = std::int64_t{1} << 53;

void ConvertMessage(const Descriptor& type, ordered_json* json);

// Converts a value of the field. If the field is a list or a map, `json` is one of its values.
void ConvertValue(const FieldDescriptor& field, ordered_json* json) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    ConvertMessage(*field.message_type(), json);
    return;
  }
  std::int64_t number = 0;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64 && json->is_string() &&
      absl::SimpleAtoi(json->get_ref<const std::string&>(), &number) &&
      number >= -kMaxExactInteger && number <= kMaxExactInteger) {
    *json = number;
  }
}

// Replaces the strings that protobuf writes for int64 values by numbers, up to kMaxExactInteger.
void ConvertMessage(const Descriptor& type, ordered_json* json) {
  // Timestamps, durations and JSON values have special JSON forms.
  if (type.file()->package() == "google.protobuf" || !json->is_object()) return;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto found = json->find(field.json_name());
    if (found == json->end()) continue;
    if (field.is_map()) {
      const FieldDescriptor& value = *field.message_type()->map_value();
      for (auto& item : *found) ConvertValue(value, &item);
    } else if (field.is_repeated()) {
      for (auto& item : *found) ConvertValue(field, &item);
    } else {
      ConvertValue(field, &*found);
    }
  }
}

}  // namespace

absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return absl::InvalidArgumentError(status.ToString());
  ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  ConvertMessage(*message.GetDescriptor(), &json);
  return JsonText(json);
}

std::string EnumWords(const google::protobuf::EnumDescriptor* type, int value) {
  const auto* const known = type->FindValueByNumber(value);
  if (known == nullptr) return absl::StrCat("unknown (", value, ")");
  absl::string_view name = known->name();
  // The name of the first enumerator is the prefix of all names, followed by UNSPECIFIED.
  absl::ConsumePrefix(&name, absl::StripSuffix(type->value(0)->name(), "UNSPECIFIED"));
  return absl::AsciiStrToLower(absl::StrReplaceAll(name, {{"_", " "}}));
}

}  // namespace quire::client
