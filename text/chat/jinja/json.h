#pragma once

// Converts between JSON and template values. formats/json_value.h and base/json_text.h are not used
// because they sort keys and use nlohmann-json's number format. The model sees the result, so the
// result must have the original order of keys and Python's numbers and separators.
//
// Place:      between values and the filter tojson; also for input that is JSON.
// Invariants: keys keep their order in both directions. The output equals that of Python's
//             json.dumps.
// Threads:    pure functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/jinja/runtime.h"
#include "text/chat/jinja/value.h"

namespace quire::text::jinja {

using TextHook = std::function<std::string(std::string)>;

inline constexpr int kMaxJsonDepth = 64;

// Limits for client JSON in a conversation: limits.max_json_* of the configuration.
struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{4} << 20;
  // Number of keys and values. A small value takes a few hundred bytes of memory.
  std::int64_t max_nodes = 250000;
  int max_depth = kMaxJsonDepth;  // nested containers; at most kMaxJsonDepth
};

// The remaining budget of all JSON documents of one conversation. Errors name the limit and its
// configuration key.
struct JsonBudget {
  explicit JsonBudget(const JsonLimits& allowed)
      : limits(allowed), bytes_left(allowed.max_bytes), nodes_left(allowed.max_nodes) {}

  const JsonLimits limits;
  std::int64_t bytes_left;
  std::int64_t nodes_left;
};

// Parses JSON. `text`, if set, is applied to every string and key. Returns INVALID_ARGUMENT for
// invalid JSON, integers outside the range of int64, numbers outside the range of double, and
// nesting deeper than kMaxJsonDepth. If a key occurs twice, the last value counts. `budget`, if not
// null, is reduced by the size of the document. Exceeding the budget or its limits.max_depth
// also returns INVALID_ARGUMENT.
absl::StatusOr<Value> FromJson(absl::string_view json, const TextHook& text = {},
                               JsonBudget* budget = nullptr);

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // indentation of one level; nullopt: a single line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Returns INVALID_ARGUMENT for values that JSON cannot represent, and RESOURCE_EXHAUSTED like
// Runtime::ChargeText.
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Runtime& runtime);

}  // namespace quire::text::jinja
