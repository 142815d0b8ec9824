#pragma once

// One tool call as the model wrote it, from its first marker to its last -> name and arguments.
//
// Place:      in the parsers of answers, which know where a call begins and ends.
// Invariants: arguments are one JSON object; those that the model wrote as JSON are passed on byte
//             for byte.
// Threads:    pure.

#include <string>

#include "absl/strings/string_view.h"
#include "text/tools/declared_tools.h"
#include "text/tools/tool_format.h"

namespace quire::text {

// What closes the function of a kXmlParameters call.
inline constexpr absl::string_view kEndFunction = "</function>";

struct ToolCall {
  std::string name;
  std::string arguments_json;
  // Empty: it is a call. Else why not: undeclared_tool, bad_call, bad_arguments.
  std::string error;

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

// {"name": .., "arguments" or "parameters": ..}. Without arguments they are {}.
ToolCall ReadObjectCall(absl::string_view object, const DeclaredTools& tools);

// Whether such an object was meant as a call: it has a name and arguments, or is no JSON.
bool LooksLikeCall(absl::string_view object);

// A call of a format that is marked: kObject, kNameThenJson, kXmlParameters or kKeyValues. The
// closing marker may be missing, except where only it tells that the call is whole (kKeyValues).
ToolCall ReadMarkedCall(absl::string_view call, const ToolFormat& format,
                        const DeclaredTools& tools);

// name(arguments).
ToolCall ReadPythonToolCall(absl::string_view call, const DeclaredTools& tools);

// A name and the text of its arguments, which must be a JSON object.
ToolCall ReadNamedCall(absl::string_view name, absl::string_view arguments,
                       const DeclaredTools& tools);

}  // namespace quire::text
