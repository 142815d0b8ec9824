#pragma once

// Calls written as Python: f(a=1, b=[True, None]). Literals are read, nothing is evaluated.
//
// Place:      in the parser of pythonic tool calls.
// Invariants: read are strings of all quotes (with the escapes of Python's str), numbers, True,
//             False, None, lists, tuples, and dictionaries with string keys, at most 64 deep.
//             Expressions, other prefixes than r, and arguments without a name or with the name of
//             another one are refused.
// Threads:    pure.

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::text {

// Whether a name of a function or an argument may have it.
bool IsPythonNameByte(char byte);

// Where the bracket that opened before the first byte closes, byte by byte.
class PythonTracker {
 public:
  // True when this byte closes it.
  bool Push(char byte);

 private:
  int depth_ = 1;
  char quote_ = 0;      // of the string that is open; 0: none
  int num_quotes_ = 0;  // in a row: of the opening of a string, or at its end
  bool is_long_ = false, is_opening_ = false, is_escape_ = false;
};

// The name and the arguments as a JSON object of `name(arguments)`. A number is written as it
// stands where JSON writes it so. Errors: INVALID_ARGUMENT that says what is there instead.
absl::StatusOr<std::pair<std::string, std::string>> ReadPythonCall(absl::string_view call);

}  // namespace quire::text
