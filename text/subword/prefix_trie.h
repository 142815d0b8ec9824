#pragma once

// A set of byte strings with a number each, asked for those that begin a text.
//
// Place:      below Unigram and SentencePiece models.
// Invariants: built in O(n log n) of the strings' bytes without recursion; a walk takes one step
//             for each byte it matches.
// Threads:    immutable.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text {

class PrefixTrie {
 public:
  PrefixTrie() { roots_.fill(-1); }

  // Of equal strings the last counts; an empty string is never found. REQUIRES: values are not
  // negative.
  explicit PrefixTrie(std::vector<std::pair<absl::string_view, std::int32_t>> entries);

  // Calls `found(size_bytes, value)` for each string that begins `text`, shortest first.
  template <typename Found>
  void ForEachPrefix(absl::string_view text, Found found) const {
    if (text.empty()) return;
    std::int32_t node = roots_[static_cast<unsigned char>(text[0])];
    for (std::size_t size = 1; node >= 0; ++size) {
      const std::int32_t value = nodes_[static_cast<std::size_t>(node)].value;
      if (value >= 0) found(size, value);
      if (size == text.size()) return;
      node = Child(node, static_cast<unsigned char>(text[size]));
    }
  }

  // Bytes of the longest string that begins `text`, and its value; 0 and -1: none.
  std::pair<std::size_t, std::int32_t> Longest(absl::string_view text) const;

  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    std::int32_t first_child = 0;  // children stand side by side, in the order of their bytes
    std::int32_t num_children = 0;
    std::int32_t value = -1;
  };
  struct Range;  // entries that share a prefix

  std::int32_t Child(std::int32_t node, unsigned char byte) const;

  std::array<std::int32_t, 256> roots_;  // node of each first byte, -1: none
  std::vector<Node> nodes_;
  std::vector<unsigned char> bytes_;  // of each node: the last byte of its string
};

}  // namespace quire::text
