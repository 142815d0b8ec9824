#pragma once

// Sets of Unicode scalar values, as ranges: what a character class of an expression stands for.
//
// Place:      below regex and grammar_text.
// Invariants: ranges ascend, do not touch, and hold no surrogate.
// Threads:    a value.

#include <cstdint>
#include <utility>
#include <vector>

namespace quire::engine {

class CodePoints {
 public:
  using Range = std::pair<char32_t, char32_t>;  // both included

  CodePoints() = default;
  // In any order, also overlapping; surrogates among them are left out.
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
