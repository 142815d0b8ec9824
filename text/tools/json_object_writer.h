#pragma once

// Writes a JSON object from members that already are JSON.
//
// Place:      used by the parsers of tool-call formats that do not write the arguments of a call as
//             JSON.
// Invariants: keys are unique: setting a key again replaces its value.
// Threads:    one thread.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quire::text {

class JsonObjectWriter {
 public:
  // `key` includes its quotes. Returns false if the key existed.
  bool Set(std::string key, std::string value);
  std::string Text() const;

 private:
  // Members are in the order in which their keys were first set.
  std::vector<std::pair<std::string, std::string>> members_;
  absl::flat_hash_map<std::string, std::size_t> indices_;  // positions in members_
};

}  // namespace quire::text
