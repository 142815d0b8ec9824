#pragma once

// Helpers for the components of tokenizer.json: type names, patterns, nesting.
//
// Place:      below normalizer, splitter, post-processor and decoder.
// Threads:    pure functions.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/unicode/regex.h"

namespace quire::text {

// Returns UNIMPLEMENTED `path.type "Name" is not supported`.
absl::Status UnsupportedType(const formats::JsonValue& config, absl::string_view type);

// Reads {"String": text} or {"Regex": pattern} under the key "pattern".
absl::StatusOr<Regex> PatternOf(const formats::JsonValue& config);

// Reads a member that must have exactly one character.
absl::StatusOr<std::string> CharacterOf(const formats::JsonValue& config, absl::string_view key);

// Determines when a Metaspace component puts its space sign in front of a text: "always", "first"
// or "never" in `prepend_scheme`. If this key is missing, the result is kAlways. Older files may
// have `add_prefix_space`: true has no effect, and false is an error unless `prepend_scheme` is
// "never".
enum class PrependScheme { kAlways, kFirst, kNever };
absl::StatusOr<PrependScheme> PrependSchemeOf(const formats::JsonValue& config);

// Calls `add` for each part of a Sequence under `key`, in order.
template <typename Add>
absl::Status ForEachPart(const formats::JsonValue& config, absl::string_view key, Add add) {
  absl::StatusOr<formats::JsonValue> parts = config.Get(key);
  if (!parts.ok()) return parts.status();
  if (absl::Status status = parts->CheckArray(); !status.ok()) return status;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    if (absl::Status status = add(parts->At(i)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace quire::text
