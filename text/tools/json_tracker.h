#pragma once

// Where a JSON object ends, byte by byte, and where its members lie.
//
// Place:      in the parsers of tool calls. What the object holds is read by formats/json_value.h.
// Invariants: brackets inside strings do not count. Text that is no JSON is followed by its
//             brackets and double quotes all the same.
// Threads:    values.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text {

class JsonTracker {
 public:
  // True when this byte closes the outermost object. Before the first brace nothing counts.
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

// The members of an object, keys without their quotes, values as they stand. Later ones of a key
// follow earlier ones. REQUIRES: `object` is JSON, without space around it.
std::vector<std::pair<absl::string_view, absl::string_view>> JsonMembers(absl::string_view object);

}  // namespace quire::text
