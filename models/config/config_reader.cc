#include "models/config/config_reader.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
// Longer values are truncated in messages.
constexpr std::size_t kMaxValueBytes = 80;

}  // namespace

absl::Status ConfigReader::Label(const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(label_, ": ", status.message()));
}

bool ConfigReader::IsNull(absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.Find(key);
  return value && value->is_null();
}

std::vector<std::string> ConfigReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.raw().items()) keys.push_back(key);
  return keys;
}

std::string ConfigReader::ValueText(absl::string_view key) const {
  std::string value = JsonText(object_.Find(key)->raw());
  if (value.size() > kMaxValueBytes) value = value.substr(0, kMaxValueBytes) + "...";
  return value;
}

absl::Status ConfigReader::Error(absl::string_view key, absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(label_, ": ", PathOf(key), " ", problem));
}

absl::Status ConfigReader::Unsupported(absl::string_view key, absl::string_view reason) const {
  return absl::UnimplementedError(absl::StrCat(label_, ": ", PathOf(key), " ", ValueText(key),
                                               " is not supported", reason.empty() ? "" : " ",
                                               reason));
}

absl::Status ConfigReader::CheckLength(absl::string_view key, std::size_t length,
                                       std::uint32_t num_layers) const {
  if (length == num_layers) return absl::OkStatus();
  return Error(key, absl::StrCat("has ", length, " entries, num_hidden_layers is ", num_layers));
}

absl::StatusOr<std::uint32_t> ConfigReader::Count(absl::string_view key, std::uint32_t low,
                                                  std::uint32_t high) const {
  const absl::StatusOr<formats::JsonValue> value = object_.Get(key);
  if (!value.ok()) return Label(value.status());
  const absl::StatusOr<std::int64_t> integer = value->AsInteger(low, high);
  if (!integer.ok()) return Label(integer.status());
  return static_cast<std::uint32_t>(*integer);
}

absl::StatusOr<double> ConfigReader::Number(absl::string_view key) const {
  const absl::StatusOr<formats::JsonValue> value = object_.Get(key);
  if (!value.ok()) return Label(value.status());
  if (!value->is_number())
    return Error(key, absl::StrCat("is ", ValueText(key), ", it must be a number"));
  return value->raw().get<double>();
}

absl::StatusOr<std::uint32_t> ConfigReader::CountOr(absl::string_view key, std::uint32_t low,
                                                    std::uint32_t high,
                                                    std::uint32_t fallback) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count, OptionalInteger(key, low, high));
  return static_cast<std::uint32_t>(count.value_or(fallback));
}

absl::StatusOr<bool> ConfigReader::BoolOr(absl::string_view key, bool fallback) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> flag, OptionalBool(key));
  return flag.value_or(fallback);
}

absl::StatusOr<std::optional<std::int64_t>> ConfigReader::OptionalInteger(absl::string_view key,
                                                                          std::int64_t low,
                                                                          std::int64_t high) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<std::int64_t>();
  const absl::StatusOr<std::int64_t> integer = value->AsInteger(low, high);
  if (!integer.ok()) return Label(integer.status());
  return std::optional<std::int64_t>(*integer);
}

absl::StatusOr<std::optional<double>> ConfigReader::OptionalNumber(absl::string_view key) const {
  if (!object_.FindNonNull(key)) return std::optional<double>();
  QUIRE_ASSIGN_OR_RETURN(const double number, Number(key));
  return std::optional<double>(number);
}

absl::StatusOr<std::optional<std::string>> ConfigReader::OptionalString(
    absl::string_view key) const {
  absl::StatusOr<std::optional<std::string>> text = object_.GetOptionalString(key);
  if (!text.ok()) return Label(text.status());
  return text;
}

absl::StatusOr<std::optional<bool>> ConfigReader::OptionalBool(absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<bool>();
  const absl::StatusOr<bool> flag = value->AsBool();
  if (!flag.ok()) return Label(flag.status());
  return std::optional<bool>(*flag);
}

absl::StatusOr<std::optional<ConfigReader>> ConfigReader::OptionalObject(
    absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<ConfigReader>();
  if (const absl::Status status = value->CheckObject(); !status.ok()) return Label(status);
  return std::optional<ConfigReader>(ConfigReader(label_, *value));
}

absl::StatusOr<std::optional<std::vector<std::int32_t>>> ConfigReader::OptionalIds(
    absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<std::vector<std::int32_t>>();
  std::vector<std::int32_t> ids;
  const std::size_t count = value->is_array() ? value->size() : 1;
  for (std::size_t i = 0; i < count; ++i) {
    const formats::JsonValue item = value->is_array() ? value->At(i) : *value;
    const absl::StatusOr<std::int64_t> id = item.AsInteger(0, kMaxId);
    if (!id.ok()) return Label(id.status());
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return std::optional<std::vector<std::int32_t>>(std::move(ids));
}

absl::StatusOr<std::optional<std::vector<double>>> ConfigReader::OptionalNumbers(
    absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<std::vector<double>>();
  if (const absl::Status status = value->CheckArray(); !status.ok()) return Label(status);
  std::vector<double> numbers;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const formats::JsonValue item = value->At(i);
    if (!item.is_number()) return Label(item.Error("must be a number"));
    numbers.push_back(item.raw().get<double>());
  }
  return std::optional<std::vector<double>>(std::move(numbers));
}

absl::StatusOr<std::optional<std::vector<double>>> ConfigReader::OptionalLimits(
    absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<std::vector<double>>();
  if (const absl::Status status = value->CheckArray(); !status.ok()) return Label(status);
  const nlohmann::json infinity = {{"__float__", "Infinity"}};
  std::vector<double> limits;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const formats::JsonValue item = value->At(i);
    const bool is_infinite = item.raw() == infinity;
    if (!is_infinite && !item.is_number()) {
      return Label(item.Error("must be a number or {\"__float__\": \"Infinity\"}"));
    }
    limits.push_back(is_infinite ? std::numeric_limits<double>::infinity()
                                 : item.raw().get<double>());
  }
  return std::optional<std::vector<double>>(std::move(limits));
}

absl::StatusOr<std::optional<std::vector<std::string>>> ConfigReader::OptionalStrings(
    absl::string_view key) const {
  const std::optional<formats::JsonValue> value = object_.FindNonNull(key);
  if (!value) return std::optional<std::vector<std::string>>();
  if (const absl::Status status = value->CheckArray(); !status.ok()) return Label(status);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const absl::StatusOr<std::string> text = value->At(i).AsString();
    if (!text.ok()) return Label(text.status());
    texts.push_back(*text);
  }
  return std::optional<std::vector<std::string>>(std::move(texts));
}

}  // namespace quire::models
