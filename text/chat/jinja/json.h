#pragma once

// JSON in and out of templates. The program's own reader and writer (formats/json_value.h,
// base/json_text.h) will not do: they sort keys and write what nlohmann-json does, where templates
// show the order of keys, Python's numbers and its separators to the model.
//
// Place:      between values and the filter tojson, and for input that arrives as JSON.
// Invariants: the order of keys is kept both ways. Written text is what Python's json.dumps writes.
// Threads:    pure.

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

// Of free JSON in a conversation: limits.max_json_* of the configuration.
struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{4} << 20;
  // Keys and values. A small one takes a few hundred bytes of memory.
  std::int64_t max_nodes = 250000;
  int max_depth = kMaxJsonDepth;  // nested containers; at most that
};

// What documents of one conversation may have together. Errors name the limit and its key.
struct JsonBudget {
  explicit JsonBudget(const JsonLimits& allowed)
      : limits(allowed), bytes_left(allowed.max_bytes), nodes_left(allowed.max_nodes) {}

  const JsonLimits limits;
  std::int64_t bytes_left;
  std::int64_t nodes_left;
};

// Every text of the document, keys too, goes through `text`, if that is not empty. Errors:
// INVALID_ARGUMENT for what is not JSON, for integers beyond 64 bits, numbers beyond those of
// doubles and documents nested more than 64 deep. Of a key that is there twice the last value
// counts.
// `budget`, if not null, bounds the document, INVALID_ARGUMENT beyond; what it has is taken off.
absl::StatusOr<Value> FromJson(absl::string_view json, const TextHook& text = {},
                               JsonBudget* budget = nullptr);

struct JsonStyle {
  bool ascii_only = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Errors: INVALID_ARGUMENT for values that JSON has not; RESOURCE_EXHAUSTED as Runtime::ChargeText.
absl::StatusOr<std::string> ToJson(const Value& value, const JsonStyle& style, Runtime& runtime);

}  // namespace quire::text::jinja
