#pragma once

// Converts argument values of tool calls to JSON, using the schema of the tool. Only tool formats
// in which the model writes values as bare text need this.
//
// The text 42 of a value can mean the string "42" or the number 42. The interpretation that is
// valid under the schema is chosen. If both are valid:
//   - If the schema allows only strings, or only strings and null, the result is a string. The text
//     `null` is null if the schema allows null.
//   - Otherwise the result is the JSON value.
// If neither is valid and the text is a Python literal (True, ['a']) with a valid value, that value
// is used. Otherwise the result is a string if the schema allows strings or the text is not JSON,
// else the JSON value.
//
// Place:      inside DeclaredTools.
// Invariants: keywords that are not evaluated (pattern, format, contains, dependencies, references
//             to other documents) allow every value. So do schemas that are nested more than 64
//             deep, and all schemas after 100 000 visited schemas, enum values and items.
// Threads:    immutable.

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "formats/json_value.h"

namespace quire::text {

class ArgumentSchema {
 public:
  // `parameters` is the schema of all arguments, an object.
  explicit ArgumentSchema(formats::JsonDocument parameters) : parameters_(std::move(parameters)) {}

  // Returns the JSON text of an argument that was written as `text`. An argument that the schema
  // does not declare becomes a string.
  std::string JsonOf(absl::string_view argument, absl::string_view text) const;

 private:
  formats::JsonDocument parameters_;
};

}  // namespace quire::text
