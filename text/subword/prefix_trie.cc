#include "text/subword/prefix_trie.h"

#include <algorithm>
#include <deque>

namespace quire::text {

struct PrefixTrie::Range {
  std::size_t begin;
  std::size_t end;
  std::size_t depth;  // size of the common prefix
  std::int32_t node;  // node of the common prefix; -1: the root
};

PrefixTrie::PrefixTrie(std::vector<std::pair<absl::string_view, std::int32_t>> entries) {
  roots_.fill(-1);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Builds the trie breadth first, so that the children of a node are consecutive. A range is freed
  // as soon as its children exist, because the strings have one range per byte.
  std::deque<Range> ranges = {{0, entries.size(), 0, -1}};
  for (; !ranges.empty(); ranges.pop_front()) {
    const Range range = ranges.front();
    std::size_t begin = range.begin;
    while (begin < range.end && entries[begin].first.size() == range.depth) {
      if (range.node >= 0) {
        nodes_[static_cast<std::size_t>(range.node)].value = entries[begin].second;
      }
      ++begin;
    }
    const auto first_child = static_cast<std::int32_t>(nodes_.size());
    while (begin < range.end) {
      const char byte = entries[begin].first[range.depth];
      std::size_t end = begin + 1;
      while (end < range.end && entries[end].first[range.depth] == byte) ++end;
      const auto node = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      bytes_.push_back(static_cast<unsigned char>(byte));
      if (range.node < 0) roots_[static_cast<unsigned char>(byte)] = node;
      ranges.push_back({begin, end, range.depth + 1, node});
      begin = end;
    }
    if (range.node < 0) continue;
    Node& parent = nodes_[static_cast<std::size_t>(range.node)];
    parent.first_child = first_child;
    parent.num_children = static_cast<std::int32_t>(nodes_.size()) - first_child;
  }
}

std::int32_t PrefixTrie::Child(std::int32_t node, unsigned char byte) const {
  const Node& parent = nodes_[static_cast<std::size_t>(node)];
  const auto begin = bytes_.begin() + parent.first_child;
  const auto end = begin + parent.num_children;
  const auto it = std::lower_bound(begin, end, byte);
  if (it == end || *it != byte) return -1;
  return parent.first_child + static_cast<std::int32_t>(it - begin);
}

std::pair<std::size_t, std::int32_t> PrefixTrie::Longest(absl::string_view text) const {
  std::pair<std::size_t, std::int32_t> longest = {0, -1};
  ForEachPrefix(text, [&](std::size_t size, std::int32_t value) { longest = {size, value}; });
  return longest;
}

std::optional<PrefixTrie::Match> PrefixTrie::Find(absl::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    const auto [size, value] = Longest(text.substr(begin));
    if (size > 0) return Match{begin, begin + size, value};
  }
  return std::nullopt;
}

}  // namespace quire::text
