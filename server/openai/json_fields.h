#pragma once

// Typed members of a JSON object from a client, and the errors about them. A null member counts as
// absent.
//
// Place:      below request_fields.cc and the readers of bodies.
// Invariants: every error is INVALID_ARGUMENT / BAD_PARAMETER with metadata `field` and
//             `param`, both the path in the client's body.
// Threads:    any.
// Lifetime:   a view of a JsonDocument.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "formats/json_value.h"

namespace quire::server {

// Adds the reason to an error that JsonValue returned for `value`, and the path of `value` in the
// client's body as `field` and `param`.
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

class JsonFields {
 public:
  // REQUIRES: object.is_object().
  explicit JsonFields(formats::JsonValue object) : object_(std::move(object)) {}

  std::optional<formats::JsonValue> Find(absl::string_view key) const {
    return object_.FindNonNull(key);
  }

  // Each function calls `set` with the value of the member `key`, unless the member is absent or
  // null.
  template <typename Set>
  absl::Status Bool(absl::string_view key, Set set) const {
    return Read(key, set, [](const formats::JsonValue& value) { return value.AsBool(); });
  }
  template <typename Set>
  absl::Status Text(absl::string_view key, Set set) const {
    return Read(key, set, [](const formats::JsonValue& value) { return value.AsString(); });
  }
  template <typename Set>
  absl::Status Int32(absl::string_view key, Set set) const {
    return Integer<std::int32_t>(key, set);
  }
  template <typename Set>
  absl::Status Int64(absl::string_view key, Set set) const {
    return Integer<std::int64_t>(key, set);
  }
  template <typename Set>
  absl::Status Float(absl::string_view key, Set set) const {
    return Read(
        key, [&](double value) { set(static_cast<float>(value)); },
        [](const formats::JsonValue& value) { return value.AsNumber(); });
  }

 private:
  template <typename Int, typename Set>
  absl::Status Integer(absl::string_view key, Set set) const {
    return Read(
        key, [&](std::int64_t value) { set(static_cast<Int>(value)); },
        [](const formats::JsonValue& value) {
          return value.AsInteger(std::numeric_limits<Int>::min(), std::numeric_limits<Int>::max());
        });
  }
  template <typename Set, typename As>
  absl::Status Read(absl::string_view key, Set set, As as) const {
    const std::optional<formats::JsonValue> member = Find(key);
    if (!member) return absl::OkStatus();
    auto value = as(*member);
    if (!value.ok()) return NameField(value.status(), *member);
    set(*std::move(value));
    return absl::OkStatus();
  }

  const formats::JsonValue object_;
};

}  // namespace quire::server
