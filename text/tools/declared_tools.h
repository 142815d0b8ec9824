#pragma once

// The tools that a request declares, with the schemas that are needed to parse their calls.
//
// Place:      created once per request, shared by the parsers of its choices.
// Invariants: names are unique.
// Threads:    immutable.

#include <memory>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/chat/chat_input.h"
#include "text/tools/argument_schema.h"

namespace quire::text {

class DeclaredTools {
 public:
  DeclaredTools() = default;  // no tools

  // `values_are_text`: the tool format writes parameter values as text, so parsers call
  // JsonOfValue. Returns INVALID_ARGUMENT with the index of a tool that has no name, a duplicate
  // name, or parameters that are not a JSON object.
  static absl::StatusOr<DeclaredTools> Create(std::span<const ChatTool> tools,
                                              bool values_are_text = true);

  bool empty() const { return tools_.empty(); }
  bool Has(absl::string_view tool) const { return tools_.contains(tool); }

  // Returns the JSON of a parameter value that was written as text, by the rules of
  // argument_schema.h. If the tool declares no `parameters` schema, the value is a JSON string.
  // REQUIRES: Has(tool), and values_are_text.
  std::string JsonOfValue(absl::string_view tool, absl::string_view parameter,
                          absl::string_view value) const;

 private:
  // Schemas by tool name; null if the tool declares no `parameters` or values_are_text is false.
  absl::flat_hash_map<std::string, std::shared_ptr<const ArgumentSchema>> tools_;
};

}  // namespace quire::text
