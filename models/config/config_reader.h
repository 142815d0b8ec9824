#pragma once

// Typed reads from a JSON file. Errors begin with the file's name and name the key.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"

namespace quire::models {

// A JSON object of a file. Has and IsNull distinguish absent from null; the Optional reads return
// nullopt for both.
//
// Threads: immutable. Lifetime: a view of the document.
class ConfigReader {
 public:
  // `label` begins every message. REQUIRES: `object` is an object.
  ConfigReader(absl::string_view label, formats::JsonValue object)
      : label_(label), object_(std::move(object)) {}

  const std::string& label() const { return label_; }
  bool Has(absl::string_view key) const { return object_.Find(key).has_value(); }
  bool IsNull(absl::string_view key) const;  // present and null
  std::vector<std::string> Keys() const;
  // Returns the value as JSON text, for messages. REQUIRES: Has(key).
  std::string ValueText(absl::string_view key) const;
  // "rope_scaling.factor", as in the file.
  std::string PathOf(absl::string_view key) const { return object_.PathOf(key); }

  // Absent and null are errors.
  absl::StatusOr<std::uint32_t> Count(absl::string_view key, std::uint32_t low,
                                      std::uint32_t high) const;
  absl::StatusOr<double> Number(absl::string_view key) const;
  // Return `fallback` for absent and null.
  absl::StatusOr<std::uint32_t> CountOr(absl::string_view key, std::uint32_t low,
                                        std::uint32_t high, std::uint32_t fallback) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool fallback) const;
  // Return nullopt for absent and null.
  absl::StatusOr<std::optional<std::int64_t>> OptionalInteger(absl::string_view key,
                                                              std::int64_t low,
                                                              std::int64_t high) const;
  absl::StatusOr<std::optional<double>> OptionalNumber(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> OptionalString(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> OptionalBool(absl::string_view key) const;
  absl::StatusOr<std::optional<ConfigReader>> OptionalObject(absl::string_view key) const;
  // Reads an integer or a list of integers.
  absl::StatusOr<std::optional<std::vector<std::int32_t>>> OptionalIds(absl::string_view key) const;
  // Reads a list of numbers.
  absl::StatusOr<std::optional<std::vector<double>>> OptionalNumbers(absl::string_view key) const;
  // Like OptionalNumbers, but an entry may be {"__float__": "Infinity"}.
  absl::StatusOr<std::optional<std::vector<double>>> OptionalLimits(absl::string_view key) const;
  // Reads a list of strings.
  absl::StatusOr<std::optional<std::vector<std::string>>> OptionalStrings(
      absl::string_view key) const;

  // Returns INVALID_ARGUMENT "<file>: <key> <problem>".
  absl::Status Error(absl::string_view key, absl::string_view problem) const;
  // Returns an error unless a list has an entry for each layer.
  absl::Status CheckLength(absl::string_view key, std::size_t length,
                           std::uint32_t num_layers) const;
  // Returns UNIMPLEMENTED "<file>: <key> <value> is not supported <reason>".
  absl::Status Unsupported(absl::string_view key, absl::string_view reason) const;

 private:
  absl::Status Label(const absl::Status& status) const;

  std::string label_;
  formats::JsonValue object_;
};

}  // namespace quire::models
