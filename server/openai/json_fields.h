#pragma once

// Members of a JSON object that a client wrote, where null means absent.
//
// Place:      below openai_request.cc and chat_messages.cc.
// Invariants: every error is INVALID_ARGUMENT / BAD_PARAMETER with metadata `field`.
// Threads:    any.
// Lifetime:   a view of a JsonDocument.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "formats/json_value.h"

namespace quire::server {

// The reason and the field of a status that JsonValue made of `value`.
inline absl::Status NameField(absl::Status status, const text::JsonValue& value) {
  return WithReason(std::move(status), Reason::kBadParameter, {{"field", value.path()}});
}

class JsonFields {
 public:
  // REQUIRES: object.is_object().
  explicit JsonFields(text::JsonValue object) : object_(std::move(object)) {}

  std::optional<text::JsonValue> Find(absl::string_view key) const {
    std::optional<text::JsonValue> member = object_.Find(key);
    if (member && member->is_null()) member.reset();
    return member;
  }

  // Each calls `set` with the value if there is one.
  template <typename Set>
  absl::Status Bool(absl::string_view key, Set set) const {
    const auto member = Find(key);
    if (!member) return absl::OkStatus();
    const auto value = member->AsBool();
    if (!value.ok()) return NameField(value.status(), *member);
    set(*value);
    return absl::OkStatus();
  }

  template <typename Set>
  absl::Status Text(absl::string_view key, Set set) const {
    const auto member = Find(key);
    if (!member) return absl::OkStatus();
    auto value = member->AsString();
    if (!value.ok()) return NameField(value.status(), *member);
    set(*std::move(value));
    return absl::OkStatus();
  }

  template <typename Set>
  absl::Status Int32(absl::string_view key, Set set) const {
    const auto member = Find(key);
    if (!member) return absl::OkStatus();
    const auto value = member->AsInteger(std::numeric_limits<std::int32_t>::min(),
                                         std::numeric_limits<std::int32_t>::max());
    if (!value.ok()) return NameField(value.status(), *member);
    set(static_cast<std::int32_t>(*value));
    return absl::OkStatus();
  }

  template <typename Set>
  absl::Status Int64(absl::string_view key, Set set) const {
    const auto member = Find(key);
    if (!member) return absl::OkStatus();
    const auto value = member->AsInteger(std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max());
    if (!value.ok()) return NameField(value.status(), *member);
    set(*value);
    return absl::OkStatus();
  }

  template <typename Set>
  absl::Status Float(absl::string_view key, Set set) const {
    const auto member = Find(key);
    if (!member) return absl::OkStatus();
    const std::optional<double> value = AsNumber(*member);
    if (!value) return NameField(member->Error("must be a number"), *member);
    set(static_cast<float>(*value));
    return absl::OkStatus();
  }

  static std::optional<double> AsNumber(const text::JsonValue& value);

 private:
  const text::JsonValue object_;
};

}  // namespace quire::server
