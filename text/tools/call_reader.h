#pragma once

// Parses the text of one tool call, from its first marker to its last, to name and arguments.
//
// Place:      used by the output parsers, which find where a call begins and ends.
// Invariants: arguments are one JSON object. Arguments that the model wrote as JSON are unchanged.
// Threads:    pure functions.

#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/declared_tools.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// The tag that closes the function of a kXmlParameters call.
inline constexpr absl::string_view kEndFunction = "</function>";

struct ToolCall {
  std::string name;
  std::string arguments_json;
  // Empty for a valid call; otherwise undeclared_tool, bad_call or bad_arguments. The output
  // parsers also set `unfinished`.
  std::string error;

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// Parses {"name": .., "arguments" or "parameters": ..}. Missing arguments become {}.
ToolCall ReadObjectCall(absl::string_view object, const DeclaredTools& tools);

// Returns whether `object` was meant as a call: it has a name and arguments, or it is not valid
// JSON.
bool LooksLikeCall(absl::string_view object);

// Parses a call between markers: kObject, kNameThenJson, kXmlParameters or kKeyValues. The closing
// marker may be missing, except for kKeyValues, where only the marker shows that the call is
// complete.
ToolCall ReadMarkedCall(absl::string_view call, const ToolFormat& format,
                        const DeclaredTools& tools);

// Parses name(arguments).
ToolCall ReadPythonToolCall(absl::string_view call, const DeclaredTools& tools);

// Parses a call from its name and the text of its arguments, which must be a JSON object.
ToolCall ReadNamedCall(absl::string_view name, absl::string_view arguments,
                       const DeclaredTools& tools);

}  // namespace quire::text
