#include "server/config/scalar_value.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"
#include "base/status.h"
#include "quire/config/v1/options.pb.h"

namespace quire::server {
namespace {

using config::v1::FieldRule;
using google::protobuf::Duration;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct NamedUnit {
  const char* name;
  std::int64_t factor;
};
constexpr std::array<NamedUnit, 4> kByteUnits = {{{"TiB", std::int64_t{1} << 40},
                                                  {"GiB", std::int64_t{1} << 30},
                                                  {"MiB", std::int64_t{1} << 20},
                                                  {"KiB", std::int64_t{1} << 10}}};
// Units in nanoseconds. "ms" precedes "s", because a text that ends with "ms" also ends with "s".
constexpr std::array<NamedUnit, 4> kTimeUnits = {
    {{"ms", 1000000}, {"s", 1000000000}, {"m", 60000000000}, {"h", 3600000000000}}};

absl::Status Bad(absl::string_view text, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", problem));
}

bool IsDigits(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

bool IsDuration(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type()->full_name() == "google.protobuf.Duration";
}

absl::StatusOr<std::int64_t> ParseInteger(absl::string_view text) {
  absl::string_view digits = text;
  absl::ConsumePrefix(&digits, "-");
  std::int64_t value = 0;
  if (!IsDigits(digits)) return Bad(text, "is not an integer");
  if (!absl::SimpleAtoi(text, &value)) return Bad(text, "does not fit into 64 bits");
  return value;
}

absl::StatusOr<double> ParseReal(absl::string_view text) {
  double value = 0;
  const bool plain = !text.empty() && text.find_first_not_of("0123456789+-.eE") == text.npos;
  if (!plain || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return Bad(text, "is not a number");
  }
  return value;
}

// Returns nanoseconds.
absl::StatusOr<std::int64_t> ParseDuration(absl::string_view text) {
  for (const NamedUnit& unit : kTimeUnits) {
    absl::string_view number = text;
    if (!absl::ConsumeSuffix(&number, unit.name)) continue;
    double value = 0;
    if (number.empty() || number.find_first_not_of("0123456789.") != number.npos ||
        !absl::SimpleAtod(number, &value)) {
      return Bad(text, "is not a duration; write a number and ms, s, m or h");
    }
    const double nanoseconds = value * static_cast<double>(unit.factor);
    if (nanoseconds > 9e18) return Bad(text, "is too long");
    return static_cast<std::int64_t>(std::llround(nanoseconds));
  }
  if (IsDigits(text)) {
    return Bad(text, absl::StrCat("has no unit; write ", text, "s, ", text, "m or ", text, "h"));
  }
  return Bad(text, "is not a duration; write a number and ms, s, m or h");
}

std::string DescribeRange(const FieldRule& rule, const FieldDescriptor* field) {
  const auto limit = [&](double value) {
    if (IsDuration(field)) return absl::FormatDuration(absl::Seconds(value));
    // Prints integers of any size without an exponent.
    return value == std::floor(value) ? absl::StrFormat("%.0f", value) : absl::StrCat(value);
  };
  if (rule.has_min() && rule.has_max()) {
    return rule.exclusive_min()
               ? absl::StrCat("above ", limit(rule.min()), ", at most ", limit(rule.max()))
               : absl::StrCat(limit(rule.min()), " to ", limit(rule.max()));
  }
  return rule.has_min() ? absl::StrCat("at least ", limit(rule.min()))
                        : absl::StrCat("at most ", limit(rule.max()));
}

// Checks `value`, which has the unit of the rule's limits: bytes, seconds or none.
absl::Status CheckRange(const FieldDescriptor* field, double value, absl::string_view text) {
  const FieldRule& rule = RuleOf(field);
  const bool low =
      rule.has_min() && (rule.exclusive_min() ? value <= rule.min() : value < rule.min());
  if (low || (rule.has_max() && value > rule.max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, " is out of range; it must be ", DescribeRange(rule, field)));
  }
  return absl::OkStatus();
}

absl::Status CheckAllowed(const FieldRule& rule, std::int64_t value) {
  if (rule.allowed().empty() ||
      std::find(rule.allowed().begin(), rule.allowed().end(), value) != rule.allowed().end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(value, " is not one of ", absl::StrJoin(rule.allowed(), ", ")));
}

absl::Status SetInteger(Message* message, const FieldDescriptor* field, absl::string_view text) {
  const FieldRule& rule = RuleOf(field);
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t value, rule.unit() == config::v1::UNIT_BYTES
                                                       ? ParseBytes(text)
                                                       : ParseInteger(text));
  QUIRE_RETURN_IF_ERROR(CheckAllowed(rule, value));
  QUIRE_RETURN_IF_ERROR(CheckRange(field, static_cast<double>(value), text));
  const auto* reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    reflection->SetInt64(message, field, value);
    return absl::OkStatus();
  }
  // The rule of every int32 field has a range within 32 bits. A test checks that for the whole
  // schema.
  const auto number = static_cast<std::int32_t>(value);
  if (field->is_repeated()) {
    reflection->AddInt32(message, field, number);
  } else {
    reflection->SetInt32(message, field, number);
  }
  return absl::OkStatus();
}

absl::Status SetReal(Message* message, const FieldDescriptor* field, absl::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const double value, ParseReal(text));
  QUIRE_RETURN_IF_ERROR(CheckRange(field, value, text));
  const auto* reflection = message->GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    reflection->SetDouble(message, field, value);
  } else {
    reflection->SetFloat(message, field, static_cast<float>(value));
  }
  return absl::OkStatus();
}

absl::Status SetDuration(Message* message, const FieldDescriptor* field, absl::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t value, ParseDuration(text));
  QUIRE_RETURN_IF_ERROR(CheckRange(field, static_cast<double>(value) / 1e9, text));
  Duration duration;
  duration.set_seconds(value / 1000000000);
  duration.set_nanos(static_cast<std::int32_t>(value % 1000000000));
  message->GetReflection()->MutableMessage(message, field)->CopyFrom(duration);
  return absl::OkStatus();
}

absl::Status SetText(Message* message, const FieldDescriptor* field, absl::string_view text) {
  const FieldRule& rule = RuleOf(field);
  const std::size_t limit =
      rule.max_length() > 0 ? static_cast<std::size_t>(rule.max_length()) : 4096;
  if (text.size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("text has ", text.size(), " bytes, at most ", limit, " are allowed"));
  }
  if (field->is_repeated()) {
    message->GetReflection()->AddString(message, field, std::string(text));
  } else {
    message->GetReflection()->SetString(message, field, std::string(text));
  }
  return absl::OkStatus();
}

absl::Status SetEnum(Message* message, const FieldDescriptor* field, absl::string_view text) {
  for (int i = 1; i < field->enum_type()->value_count(); ++i) {
    const auto* value = field->enum_type()->value(i);
    if (EnumName(value) != text) continue;
    if (field->is_repeated()) {
      message->GetReflection()->AddEnum(message, field, value);
    } else {
      message->GetReflection()->SetEnum(message, field, value);
    }
    return absl::OkStatus();
  }
  return Bad(text, absl::StrCat("is not one of ", absl::StrJoin(EnumNames(field), ", ")));
}

std::string PrintBytes(std::int64_t value) {
  for (const NamedUnit& unit : kByteUnits) {
    if (value != 0 && value % unit.factor == 0) return absl::StrCat(value / unit.factor, unit.name);
  }
  return absl::StrCat(value);
}

std::string PrintDuration(const Duration& duration) {
  const std::int64_t nanoseconds = duration.seconds() * 1000000000 + duration.nanos();
  if (nanoseconds % 1000000000 == 0) return absl::StrCat(duration.seconds(), "s");
  if (nanoseconds % 1000000 == 0) return absl::StrCat(nanoseconds / 1000000, "ms");
  return absl::StrFormat("%d.%09ds", duration.seconds(), duration.nanos());
}

// Prints a JSON string in both spellings, because every JSON string is also a YAML string.
std::string PrintText(const Message& message, const FieldDescriptor* field, int index) {
  const auto* reflection = message.GetReflection();
  return JsonQuoted(index >= 0 ? reflection->GetRepeatedString(message, field, index)
                               : reflection->GetString(message, field));
}

}  // namespace

absl::StatusOr<std::int64_t> ParseBytes(absl::string_view text) {
  for (const NamedUnit& unit : kByteUnits) {
    absl::string_view digits = text;
    if (!absl::ConsumeSuffix(&digits, unit.name)) continue;
    std::int64_t count = 0;
    if (!IsDigits(digits)) return Bad(text, "is not a number of bytes");
    if (!absl::SimpleAtoi(digits, &count) ||
        count > std::numeric_limits<std::int64_t>::max() / unit.factor) {
      return Bad(text, "does not fit into 64 bits");
    }
    return count * unit.factor;
  }
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string suffix = absl::AsciiStrToUpper(text.substr(digits));
  if (digits > 0 && !suffix.empty() && absl::string_view("KMGT").find(suffix[0]) != text.npos &&
      (suffix.size() == 1 || suffix.substr(1) == "B" || suffix.substr(1) == "IB")) {
    return Bad(text, absl::StrCat("is ambiguous; write ", text.substr(0, digits),
                                  suffix.substr(0, 1), "iB or a number of bytes"));
  }
  if (!IsDigits(text)) return Bad(text, "is not a number of bytes");
  return ParseInteger(text);
}

const FieldRule& RuleOf(const FieldDescriptor* field) {
  return field->options().GetExtension(config::v1::rule);
}

bool IsSection(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated() &&
         !IsDuration(field);
}

bool IsEntryList(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated();
}

std::string EnumName(const google::protobuf::EnumValueDescriptor* value) {
  // The prefix is the name of value 0 without UNSPECIFIED.
  const std::string& zero = value->type()->value(0)->name();
  const std::size_t prefix = zero.size() - absl::string_view("UNSPECIFIED").size();
  return absl::AsciiStrToLower(value->name().substr(prefix));
}

std::vector<std::string> EnumNames(const FieldDescriptor* field) {
  std::vector<std::string> names;
  for (int i = 1; i < field->enum_type()->value_count(); ++i) {
    names.push_back(EnumName(field->enum_type()->value(i)));
  }
  return names;
}

absl::Status SetScalar(Message* message, const FieldDescriptor* field, absl::string_view text,
                       bool quoted) {
  const FieldRule& rule = RuleOf(field);
  if (field->has_presence() && !rule.absent_word().empty() && text == rule.absent_word()) {
    message->GetReflection()->ClearField(message, field);
    return absl::OkStatus();
  }
  const auto type = field->cpp_type();
  const bool number =
      type == FieldDescriptor::CPPTYPE_INT32 || type == FieldDescriptor::CPPTYPE_INT64 ||
      type == FieldDescriptor::CPPTYPE_FLOAT || type == FieldDescriptor::CPPTYPE_DOUBLE;
  if (quoted && number) return Bad(text, "is quoted text, not a number");
  if (quoted && type == FieldDescriptor::CPPTYPE_BOOL) {
    return Bad(text, "is quoted text, not a boolean; write true or false");
  }
  switch (type) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return SetInteger(message, field, text);
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return SetReal(message, field, text);
    case FieldDescriptor::CPPTYPE_STRING:
      return SetText(message, field, text);
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(message, field, text);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return SetDuration(message, field, text);
    case FieldDescriptor::CPPTYPE_BOOL:
      if (text != "true" && text != "false") {
        return Bad(text, "is not a boolean; write true or false");
      }
      message->GetReflection()->SetBool(message, field, text == "true");
      return absl::OkStatus();
    default:
      return absl::InternalError(absl::StrCat("no spelling for ", field->full_name()));
  }
}

std::string PrintScalar(const Message& message, const FieldDescriptor* field, int index,
                        Spelling spelling) {
  const auto* reflection = message.GetReflection();
  const FieldRule& rule = RuleOf(field);
  const bool json = spelling == Spelling::kJson;
  if (index < 0 && field->has_presence() && !rule.absent_word().empty() &&
      !reflection->HasField(message, field)) {
    return json ? JsonQuoted(rule.absent_word()) : rule.absent_word();
  }
  const bool bytes = rule.unit() == config::v1::UNIT_BYTES && !json;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const std::int32_t value = index >= 0 ? reflection->GetRepeatedInt32(message, field, index)
                                            : reflection->GetInt32(message, field);
      return bytes ? PrintBytes(value) : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const std::int64_t value = reflection->GetInt64(message, field);
      return bytes ? PrintBytes(value) : absl::StrCat(value);
    }
    case FieldDescriptor::CPPTYPE_FLOAT:
      return absl::StrCat(reflection->GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const std::string name =
          EnumName(index >= 0 ? reflection->GetRepeatedEnum(message, field, index)
                              : reflection->GetEnum(message, field));
      return json ? JsonQuoted(name) : name;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return PrintText(message, field, index);
    default: {
      Duration duration;
      duration.CopyFrom(reflection->GetMessage(message, field));
      const std::string text = PrintDuration(duration);
      return json ? JsonQuoted(text) : text;
    }
  }
}

}  // namespace quire::server
