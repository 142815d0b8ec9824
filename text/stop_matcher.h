#pragma once

// Finds stop strings in text that arrives in pieces, and holds back what may become one.
//
// Place:      output workers, behind the detokenizer; one automaton per request, one matcher per
//             choice.
// Invariants: text given out + text held back = text pushed, until a match. Held back is the
//             longest suffix of the text that begins a stop string, so it is shorter than the
//             longest of them. The earliest end of a match wins; of matches that end together, the
//             longest.
// Threads:    StopAutomaton is immutable; StopMatcher: one thread at a time.
// Lifetime:   the automaton outlives its matchers.
// Source:     Aho, Corasick, "Efficient string matching", CACM 18 (1975) 333-340.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace quire::text {

class StopAutomaton {
 public:
  // REQUIRES: no string is empty.
  explicit StopAutomaton(const std::vector<std::string>& stops);

  bool empty() const { return nodes_.size() == 1; }
  std::int32_t Next(std::int32_t node, std::uint8_t byte) const;
  // The longest suffix of the node's prefix that can still become a stop string.
  std::int32_t Settle(std::int32_t node) const;
  // Length of the prefix that the node stands for.
  std::int32_t depth(std::int32_t node) const { return nodes_[Index(node)].depth; }
  // Index of the longest stop string that ends at this node, or -1.
  std::int32_t match(std::int32_t node) const { return nodes_[Index(node)].match; }
  std::size_t length(std::int32_t stop) const { return lengths_[Index(stop)]; }

 private:
  struct Edge {
    std::uint8_t byte;
    std::int32_t node;
  };
  struct Node {
    std::vector<Edge> edges;
    std::int32_t fail = 0;
    std::int32_t depth = 0;
    std::int32_t match = -1;
  };
  static std::size_t Index(std::int32_t node) { return static_cast<std::size_t>(node); }
  std::int32_t Child(std::int32_t node, std::uint8_t byte) const;
  void Link();

  std::vector<Node> nodes_;
  std::vector<std::size_t> lengths_;  // of the stop strings
};

class StopMatcher {
 public:
  // Null: nothing ever matches and nothing is held back.
  explicit StopMatcher(const StopAutomaton* automaton) : automaton_(automaton) {}

  // Appends to `out` what the new text settles. A match is reported only if `may_stop`; others are
  // passed over, for good. After a reported match the text ends: before the stop string, or behind
  // it with `include_stop_text`. The result is the index of the stop string. Not to be called after
  // a match.
  std::optional<std::int32_t> Push(absl::string_view text, bool may_stop, bool include_stop_text,
                                   std::string* out);
  // Gives out what is still held back.
  void Finish(std::string* out);

 private:
  const StopAutomaton* automaton_;
  std::int32_t node_ = 0;
  std::string held_;
};

}  // namespace quire::text
