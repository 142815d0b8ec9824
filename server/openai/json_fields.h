#pragma once

// Typed members of a JSON object from a client, and the errors about them. A null member counts as
// absent.
//
// Place:      below request_fields.cc and the readers of bodies.
// Invariants: every error is INVALID_ARGUMENT with metadata `field` and `param`, both the path in
//             the client's body. The reason is PROMPT_MISSING for MissingInput, else BAD_PARAMETER.
// Threads:    any.
// Lifetime:   a view of a JsonDocument.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "formats/json_value.h"

namespace quire::server {

// Adds the reason and the path of `value` to an error that JsonValue returned for `value`.
inline absl::Status NameField(absl::Status status, const formats::JsonValue& value) {
  return WithReason(std::move(status), Reason::kBadParameter,
                    {{"field", value.path()}, {"param", value.path()}});
}

// Returns the error "PATH PROBLEM" for the path of `value`.
inline absl::Status BadField(const formats::JsonValue& value, absl::string_view problem) {
  return NameField(value.Error(problem), value);
}

inline absl::Status MissingMember(const formats::JsonValue& object, absl::string_view key) {
  const std::string path = object.PathOf(key);
  return WithReason(absl::InvalidArgumentError(absl::StrCat(path, " is missing")),
                    Reason::kBadParameter, {{"field", path}, {"param", path}});
}

inline absl::Status CheckObject(const formats::JsonValue& value) {
  return value.is_object() ? absl::OkStatus() : BadField(value, "must be an object");
}

inline absl::Status CheckArray(const formats::JsonValue& value) {
  return value.is_array() ? absl::OkStatus() : BadField(value, "must be a list");
}

// Returns the error for a missing field that should contain the input of the model.
inline absl::Status MissingInput(absl::string_view field) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(field, " is missing")),
                    Reason::kPromptMissing,
                    {{"field", std::string(field)}, {"param", std::string(field)}});
}

// Returns the string member `key`. If the member is missing or not a string, the error names it.
inline absl::StatusOr<std::string> RequiredText(const formats::JsonValue& object,
                                                absl::string_view key) {
  const std::optional<formats::JsonValue> member = object.FindNonNull(key);
  if (!member) return MissingMember(object, key);
  absl::StatusOr<std::string> text = member->AsString();
  if (!text.ok()) return NameField(text.status(), *member);
  return text;
}

// Calls `add` with each string of a list.
template <typename Add>
absl::Status ReadStrings(const formats::JsonValue& list, Add add) {
  if (!list.is_array()) return BadField(list, "must be a list of strings");
  for (std::size_t i = 0; i < list.size(); ++i) {
    auto text = list.At(i).AsString();
    if (!text.ok()) return NameField(text.status(), list.At(i));
    add(*std::move(text));
  }
  return absl::OkStatus();
}

// Calls `add` with each token id of a list. Refuses ids below `min`.
template <typename Add>
absl::Status ReadTokenIds(const formats::JsonValue& list, std::int32_t min, Add add) {
  if (!list.is_array()) return BadField(list, "must be a list of token ids");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const formats::JsonValue id = list.At(i);
    const auto value = id.AsInteger(min, std::numeric_limits<std::int32_t>::max());
    if (!value.ok()) return NameField(value.status(), id);
    add(static_cast<std::int32_t>(*value));
  }
  return absl::OkStatus();
}

class JsonFields {
 public:
  // REQUIRES: object.is_object().
  explicit JsonFields(formats::JsonValue object) : object_(std::move(object)) {}

  std::optional<formats::JsonValue> Find(absl::string_view key) const {
    return object_.FindNonNull(key);
  }

  // Each function stores the value of the member `key`, unless the member is absent or null. `out`
  // is a pointer to a variable, or a function that is called with the value.
  template <typename Out>
  absl::Status Bool(absl::string_view key, Out out) const {
    return Read(key, out, [](const formats::JsonValue& value) { return value.AsBool(); });
  }
  template <typename Out>
  absl::Status Text(absl::string_view key, Out out) const {
    return Read(key, out, [](const formats::JsonValue& value) { return value.AsString(); });
  }
  template <typename Out>
  absl::Status Int32(absl::string_view key, Out out) const {
    return Integer<std::int32_t>(key, out);
  }
  template <typename Out>
  absl::Status Int64(absl::string_view key, Out out) const {
    return Integer<std::int64_t>(key, out);
  }
  template <typename Out>
  absl::Status Float(absl::string_view key, Out out) const {
    return Read(
        key, [&](double value) { Store(static_cast<float>(value), out); },
        [](const formats::JsonValue& value) { return value.AsNumber(); });
  }

 private:
  template <typename Value, typename Out>
  static void Store(Value value, Out& out) {
    if constexpr (std::is_pointer_v<Out>) {
      *out = std::move(value);
    } else {
      out(std::move(value));
    }
  }
  template <typename Int, typename Out>
  absl::Status Integer(absl::string_view key, Out out) const {
    return Read(
        key, [&](std::int64_t value) { Store(static_cast<Int>(value), out); },
        [](const formats::JsonValue& value) {
          return value.AsInteger(std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max());
        });
  }
  template <typename Out, typename As>
  absl::Status Read(absl::string_view key, Out out, As as) const {
    const std::optional<formats::JsonValue> member = Find(key);
    if (!member) return absl::OkStatus();
    auto value = as(*member);
    if (!value.ok()) return NameField(value.status(), *member);
    Store(*std::move(value), out);
    return absl::OkStatus();
  }

  const formats::JsonValue object_;
};

}  // namespace quire::server
