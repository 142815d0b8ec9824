#pragma once

// A JSON object from members that are JSON already.
//
// Place:      where arguments of calls are not written as JSON.
// Invariants: keys differ: one that is set again has its last value.
// Threads:    one.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quire::text {

class JsonObjectWriter {
 public:
  // `key`: with its quotes. False when it was there before.
  bool Set(std::string key, std::string value);
  std::string Text() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;  // in the order of their first values
  absl::flat_hash_map<std::string, std::size_t> indices_;     // of members_
};

}  // namespace quire::text
