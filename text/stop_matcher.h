#pragma once

// Finds stop strings in text that arrives in pieces, and buffers text that may become a stop
// string.
//
// Place:      output workers, after the detokenizer; one automaton per request, one matcher per
//             choice.
// Invariants: emitted text + buffered text = pushed text, until a match. The buffered text is the
//             longest suffix that is a proper prefix of a stop string. The match that ends first
//             wins; among matches with the same end, the longest wins.
// Threads:    StopAutomaton is immutable; a StopMatcher is used by one thread at a time.
// Lifetime:   the automaton must outlive its matchers.
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
  // Returns the node of the longest suffix of the node's string that is a proper prefix of a stop
  // string.
  std::int32_t Settle(std::int32_t node) const;
  // Length of the string that the node represents, which is a prefix of a stop string.
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
  std::vector<std::size_t> lengths_;  // lengths of the stop strings
};

class StopMatcher {
 public:
  // If `automaton` is null, there are no stop strings.
  explicit StopMatcher(const StopAutomaton* automaton) : automaton_(automaton) {}

  // Appends to `out` the text that can no longer become part of a stop string. If `may_stop` is
  // false, matches that end in `text` are ignored. On a match, returns the index of the stop
  // string. The emitted text then ends before the stop string, or after it if `include_stop_text`
  // is set. REQUIRES: no match so far.
  std::optional<std::int32_t> Push(absl::string_view text, bool may_stop, bool include_stop_text,
                                   std::string* out);
  // Appends the buffered text to `out`.
  void Finish(std::string* out);

 private:
  const StopAutomaton* automaton_;
  std::int32_t node_ = 0;
  std::string buffered_;
};

}  // namespace quire::text
