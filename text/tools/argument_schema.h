#pragma once

// Reads values that a model wrote as bare text (formats without JSON) by the schema of their tool.
//
// Text may stand for itself as a string, or for the JSON value that it spells. The reading that is
// valid under the schema is chosen. If both are valid:
//   - the schema allows no type but string and null: a string, except that `null` is null where the
//     schema allows it;
//   - else: the JSON value.
// If neither is valid, the text may be a literal of Python (True, ['a']) that is. Else it is a
// string if the schema allows strings or the text is not JSON, and the JSON value otherwise.
//
// Place:      inside DeclaredTools.
// Invariants: keywords that are not evaluated (pattern, format, contains, dependencies, references
//             out of the document) allow every value. So does what is left after 100 000 schemas.
// Threads:    immutable.

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "formats/json_value.h"

namespace quire::text {

class ArgumentSchema {
 public:
  // `parameters`: the schema of all arguments, an object.
  explicit ArgumentSchema(formats::JsonDocument parameters) : parameters_(std::move(parameters)) {}

  // The JSON text of an argument that was written as `text`. An argument that the schema does not
  // declare is a string.
  std::string JsonOf(absl::string_view argument, absl::string_view text) const;

 private:
  formats::JsonDocument parameters_;
};

}  // namespace quire::text
