#pragma once

// Finds the end of a JSON object byte by byte, and the members of an object.
//
// Place:      in the parsers of tool calls. formats/json_value.h parses the object itself.
// Invariants: brackets inside strings do not count. Invalid JSON is tracked by its brackets and
//             double quotes as well.
// Threads:    a value type; one thread at a time per object.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text {

class JsonTracker {
 public:
  // Returns true if this byte closes the outermost object. Bytes before the first brace are
  // ignored.
  bool Push(char byte) {
    if (depth_ == 0) {
      if (byte == '{') depth_ = 1;
      return false;
    }
    if (is_escape_) {
      is_escape_ = false;
    } else if (in_string_) {
      if (byte == '\\') is_escape_ = true;
      if (byte == '"') in_string_ = false;
    } else if (byte == '"') {
      in_string_ = true;
    } else if (byte == '{' || byte == '[') {
      ++depth_;
    } else if (byte == '}' || byte == ']') {
      --depth_;
      return depth_ == 0;
    }
    return false;
  }
  bool is_inside() const { return depth_ > 0; }

 private:
  int depth_ = 0;
  bool in_string_ = false, is_escape_ = false;
};

// Returns the members of an object in order, duplicate keys included. Keys have no quotes and are
// not decoded; values are unchanged. REQUIRES: `object` is valid JSON without surrounding white
// space.
std::vector<std::pair<absl::string_view, absl::string_view>> JsonMembers(absl::string_view object);

}  // namespace quire::text
