#pragma once

// Maps fields of the gRPC API to the names of the same fields in the OpenAI API.
//
//   FieldNames names;
//   names.Set("constraint.regex", "structured_outputs.regex");
//   names.Rename("constraint.regex")                           -> "structured_outputs.regex"
//   names.Rename("chat.tools[2].parameters_json_schema")       -> "tools[2].function.parameters"
//   names.RenameIn("stopping.stop[1] has 300 bytes")           -> "stop[1] has 300 bytes"
//
// Place:      below openai_error.cc, which renames the fields in every error of the listener. The
//             readers of bodies add names that depend on the request.
// Invariants: other names, such as configuration keys, are not changed.
// Threads:    const methods are thread-safe.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

class FieldNames {
 public:
  // Maps the path `ours` to `theirs`. "[]" stands for any index: "chat.tools[].name". The mapping
  // also applies to fields below the path. If several paths match, the longest one applies. If a
  // path was set several times, the last call applies.
  void Set(std::string ours, std::string theirs);
  // Maps chat.tools[i] to tools[indexes[i]]. Default: the same index.
  void SetToolIndexes(std::vector<std::size_t> indexes) { tool_indexes_ = std::move(indexes); }
  // Sets the client's name of the constraint and all its kinds.
  void SetConstraint(const std::string& theirs);

  std::string Rename(absl::string_view field) const;
  // Returns the message with all field names in it renamed. Text in double quotes is not changed.
  std::string RenameIn(absl::string_view message) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<std::size_t> tool_indexes_;
};

}  // namespace quire::server
