#pragma once

// What the components of tokenizer.json share: type names, patterns, nesting.
//
// Place:      below normalizer, splitter, post-processor and decoder.
// Threads:    pure.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/json_value.h"
#include "text/unicode/regex.h"

namespace quire::text {

// The name in "type". Errors name `path.type`.
absl::StatusOr<std::string> ComponentType(const formats::JsonValue& config);

// UNIMPLEMENTED `path.type "Name" is not supported`.
absl::Status UnsupportedType(const formats::JsonValue& config, absl::string_view type);

// {"String": text} or {"Regex": pattern} under the key "pattern".
absl::StatusOr<Regex> PatternOf(const formats::JsonValue& config);

// A member that must hold exactly one character.
absl::StatusOr<std::string> CharacterOf(const formats::JsonValue& config, absl::string_view key);

// Whether a Metaspace component, in its new or old form, puts a sign in front: "always", "first" or
// "never" in `prepend_scheme`; the old `add_prefix_space` true means always, and false demands
// never.
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
