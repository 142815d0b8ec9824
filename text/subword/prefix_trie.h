#pragma once

// A map from byte strings to numbers that finds the strings that are prefixes of a text.
//
// Place:      below Unigram and SentencePiece models, added tokens and chat markers.
// Invariants: construction takes O(n log n) in the size of the strings, without recursion. A search
//             takes one step for each matched byte.
// Threads:    immutable.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text {

class PrefixTrie {
 public:
  PrefixTrie() { roots_.fill(-1); }

  // If a string occurs twice, the last one counts. An empty string is never found. REQUIRES: values
  // are not negative.
  explicit PrefixTrie(std::vector<std::pair<absl::string_view, std::int32_t>> entries);

  // Calls `found(size_bytes, value)` for each string that is a prefix of `text`, shortest first.
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

  // Returns the size and value of the longest string that is a prefix of `text`; 0 and -1 if there
  // is none.
  std::pair<std::size_t, std::int32_t> Longest(absl::string_view text) const;

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t value;
  };
  // Returns the leftmost, then longest string in `text` that starts at or after `from`. Takes
  // O(distance + longest string) if few positions of the text start a string.
  std::optional<Match> Find(absl::string_view text, std::size_t from) const;

  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    std::int32_t first_child = 0;  // children are consecutive, ordered by byte
    std::int32_t num_children = 0;
    std::int32_t value = -1;
  };
  struct Range;  // entries with a common prefix

  std::int32_t Child(std::int32_t node, unsigned char byte) const;

  std::array<std::int32_t, 256> roots_;  // node of each first byte; -1: none
  std::vector<Node> nodes_;
  std::vector<unsigned char> bytes_;  // for each node, the last byte of its string
};

}  // namespace quire::text
