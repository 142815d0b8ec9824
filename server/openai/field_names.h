#pragma once

// Names of fields of the gRPC API -> the names by which a client of OpenAI's API wrote them.
//
//   FieldNames names;
//   names.Set("constraint.regex", "structured_outputs.regex");
//   names.Of("constraint.regex")                           -> "structured_outputs.regex"
//   names.Of("chat.tools[2].parameters_json_schema")       -> "tools[2].function.parameters"
//   names.InText("stopping.stop[1] has 300 bytes, ..")     -> "stop[1] has 300 bytes, .."
//
// Place:      below openai_error.cc, which writes every error of the listener with it. The readers
//             of bodies add the names that depend on what the client sent.
// Invariants: names that are no field of the gRPC API, such as keys of the configuration, stay.
// Threads:    const functions from any.
// Lifetime:   values.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::server {

class FieldNames {
 public:
  // `ours` and `theirs` are paths whose indexes are left out: "chat.tools[].name". They also name
  // the fields below them. Of several that fit, the longest counts, then the one that was set.
  void Set(std::string ours, std::string theirs);
  // `indexes[i]`: the index in the body of the tool that is chat.tools[i]. Unset: the same.
  void SetToolIndexes(std::vector<std::size_t> indexes) { tools_ = std::move(indexes); }
  // The client's name for everything that constrains the answer.
  void SetConstraint(const std::string& theirs);

  std::string Of(absl::string_view field) const;
  // The message with every field in the client's name. Text in double quotes stays.
  std::string InText(absl::string_view message) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
  std::vector<std::size_t> tools_;
};

}  // namespace quire::server
