#pragma once

// Parses calls written as Python: f(a=1, b=[True, None]). It reads literals and evaluates nothing.
//
// Place:      in the parser of pythonic tool calls.
// Invariants: accepts strings with all kinds of quotes (and the escapes of Python's str), numbers,
//             True, False, None, lists, tuples, and dictionaries with string keys. Nesting is at
//             most 64 deep. Rejects expressions, prefixes other than r, positional arguments and
//             duplicate argument names.
// Threads:    pure functions.

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// Returns whether the name of a function or an argument may contain this byte.
bool IsPythonNameByte(char byte);

// Finds the closing bracket of a bracket that opened before the first byte.
class PythonTracker {
 public:
  // Returns true if this byte is the closing bracket.
  bool Push(char byte);

 private:
  int depth_ = 1;
  char quote_ = 0;      // quote of the open string; 0: none
  int num_quotes_ = 0;  // consecutive quotes at the start or the end of a string
  bool is_triple_quoted_ = false, is_opening_ = false, is_escape_ = false;
};

// Parses `name(arguments)` and returns the name and the arguments as a JSON object. Numbers that
// are valid JSON are copied unchanged. Returns INVALID_ARGUMENT with the position and the
// unexpected text.
absl::StatusOr<std::pair<std::string, std::string>> ReadPythonCall(absl::string_view call);

}  // namespace quire::text
