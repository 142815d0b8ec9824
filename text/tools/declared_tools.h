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

  // `reads_text` means that the format writes values as text, so that JsonOfValue will be called.
  // Returns INVALID_ARGUMENT with the index of a tool that has no name, a duplicate name, or
  // parameters that are not a JSON object.
  static absl::StatusOr<DeclaredTools> Create(std::span<const ChatTool> tools,
                                              bool reads_text = true);

  bool empty() const { return tools_.empty(); }
  bool Has(absl::string_view tool) const { return tools_.contains(tool); }

  // Returns the JSON of a parameter value that was written as text, by the rules of
  // argument_schema.h. Values of a tool without parameters are strings. REQUIRES: Has(tool), and
  // reads_text.
  std::string JsonOfValue(absl::string_view tool, absl::string_view parameter,
                          absl::string_view value) const;

 private:
  // Schemas by tool name; null for a tool without parameters.
  absl::flat_hash_map<std::string, std::shared_ptr<const ArgumentSchema>> tools_;
};

}  // namespace quire::text
