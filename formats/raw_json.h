#pragma once

// Returns the text of values inside a JSON document, so that the order of keys and the digits of
// numbers are kept.
//
// Place:      for texts that are passed on unchanged; see also ordered_json.h.
// Invariants: each call scans its text once.
// Threads:    pure functions.
// Lifetime:   results are views of the text.
// REQUIRES:   JsonDocument has parsed the text, so it is valid JSON without duplicate keys.

#include <vector>

#include "absl/strings/string_view.h"

namespace quire::formats {

// Returns the value of member `key`. REQUIRES: `object` is an object with that member.
absl::string_view RawMember(absl::string_view object, absl::string_view key);

// Returns the elements in their order. REQUIRES: `array` is an array.
std::vector<absl::string_view> RawElements(absl::string_view array);

}  // namespace quire::formats
