#pragma once

// The bytes of a value inside a JSON text: keys keep their order, numbers their digits.
//
// Place:      beside ordered_json.h, for texts that are passed on and not changed.
// Invariants: REQUIRES everywhere: the text is one that JsonDocument has parsed, so it is valid
//             JSON and no key of an object occurs twice. Each call scans its text once.
// Threads:    pure.
// Lifetime:   results are views of the text.

#include <vector>

#include "absl/strings/string_view.h"

namespace quire::formats {

// Returns the value of member `key`. REQUIRES: `object` is an object with that member.
absl::string_view RawMember(absl::string_view object, absl::string_view key);

// Returns the elements in their order. REQUIRES: `array` is an array.
std::vector<absl::string_view> RawElements(absl::string_view array);

}  // namespace quire::formats
