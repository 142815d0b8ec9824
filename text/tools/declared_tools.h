#pragma once

// The tools that a request declares, as far as reading calls of them needs.
//
// Place:      made once a request, shared by the parsers of its choices.
// Invariants: names differ.
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
  DeclaredTools() = default;  // none

  // `reads_text`: the format writes values as text, so JsonOfValue will be called. Errors:
  // INVALID_ARGUMENT for a tool without a name, a name that is there twice, and parameters that are
  // no JSON object; the message names the index.
  static absl::StatusOr<DeclaredTools> Create(std::span<const ChatTool> tools,
                                              bool reads_text = true);

  bool empty() const { return tools_.empty(); }
  bool Has(absl::string_view tool) const { return tools_.contains(tool); }

  // The JSON of a parameter's value that was written as text, by the rules of argument_schema.h. A
  // tool without parameters has strings. REQUIRES: Has(tool), and reads_text.
  std::string JsonOfValue(absl::string_view tool, absl::string_view parameter,
                          absl::string_view value) const;

 private:
  // By name; null: no parameters.
  absl::flat_hash_map<std::string, std::shared_ptr<const ArgumentSchema>> tools_;
};

}  // namespace quire::text
