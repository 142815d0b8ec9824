#pragma once

// The tools that a request declares, as far as reading calls of them needs.
//
// Place:      made once a request, shared by the parsers of its choices.
// Invariants: names differ.
// Threads:    immutable.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/hash_map.h"
#include "text/chat/chat_input.h"

namespace quire::text {

class DeclaredTools {
 public:
  DeclaredTools() = default;  // none

  // Errors: INVALID_ARGUMENT for a tool without a name, a name that is there twice, and parameters
  // that are no JSON object; the message names the index.
  static absl::StatusOr<DeclaredTools> Create(std::span<const ChatTool> tools);

  bool empty() const { return tools_.empty(); }
  bool Has(absl::string_view tool) const { return tools_.contains(tool); }

  // For formats that write values as text: the JSON of a parameter's value. A parameter that takes
  // strings only has `value` as a string, one of other types has it as it stands where it is JSON
  // of such a type, one without a type where it is any JSON, and one that is not declared as a
  // string. REQUIRES: Has(tool).
  std::string JsonOfValue(absl::string_view tool, absl::string_view parameter,
                          absl::string_view value) const;

 private:
  // Bits of the types in a schema.
  enum Types : std::uint8_t {
    kString = 1,
    kNumber = 2,
    kBoolean = 4,
    kNull = 8,
    kArray = 16,
    kObject = 32,
    kAny = 63,
  };
  using Parameters = HashMap<std::string, std::uint8_t>;

  HashMap<std::string, Parameters> tools_;
};

}  // namespace quire::text
