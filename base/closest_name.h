#pragma once

// Suggests a known name for a misspelled one, for messages such as `did you mean "max_tokens"?`.
//
// Source:  edit distance with transpositions of adjacent bytes ("optimal string alignment"),
//          Damerau 1964 and Levenshtein 1966.
// Threads: any.

#include <span>

#include "absl/strings/string_view.h"

namespace quire {

// Returns the name of `known` that needs the fewest edits to become `name`, or "" if every name
// needs too many. An edit inserts, removes or replaces a byte, or swaps two adjacent bytes. Upper
// and lower case are equal. Two edits are allowed if both names have at least four bytes, otherwise
// one. For a `name` of a single byte no edit is allowed, because all other single bytes are one
// edit away. The first of several closest names is returned. The result refers to memory of
// `known`. A name of more than 64 bytes has no suggestion, which bounds the cost of names that
// clients send.
absl::string_view ClosestName(absl::string_view name, std::span<const absl::string_view> known);

}  // namespace quire
