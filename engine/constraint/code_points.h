#pragma once

// A set of Unicode scalar values, stored as ranges. It is the value of a character class.
//
// Place:      below regex and grammar_text.
// Invariants: ranges are ascending, not adjacent, and contain no surrogates.
// Threads:    a value type; one thread at a time per object.

#include <utility>
#include <vector>

namespace quire::engine {

class CodePoints {
 public:
  using Range = std::pair<char32_t, char32_t>;  // both ends included

  CodePoints() = default;
  // `ranges` may be unordered and overlap; surrogates are dropped.
  explicit CodePoints(std::vector<Range> ranges);
  static CodePoints All();

  CodePoints Complement() const;
  CodePoints Union(const CodePoints& other) const;
  CodePoints Minus(const CodePoints& other) const;
  CodePoints Intersect(const CodePoints& other) const;

  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t code_point) const;
  const std::vector<Range>& ranges() const { return ranges_; }

  friend bool operator==(const CodePoints&, const CodePoints&) = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace quire::engine
