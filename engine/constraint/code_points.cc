#include "engine/constraint/code_points.h"

#include <algorithm>

namespace quire::engine {

namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

}  // namespace

CodePoints::CodePoints(std::vector<Range> ranges) {
  std::vector<Range> scalar;
  for (const auto& [first, last] : ranges) {
    if (first < kFirstSurrogate)
      scalar.emplace_back(first, std::min<char32_t>(last, kFirstSurrogate - 1));
    if (last > kLastSurrogate) {
      scalar.emplace_back(std::max<char32_t>(first, kLastSurrogate + 1), std::min(last, kLast));
    }
  }
  std::erase_if(scalar, [](const Range& range) { return range.first > range.second; });
  std::sort(scalar.begin(), scalar.end());
  for (const Range& range : scalar) {
    if (!ranges_.empty() && range.first <= ranges_.back().second + 1) {
      ranges_.back().second = std::max(ranges_.back().second, range.second);
    } else {
      ranges_.push_back(range);
    }
  }
}

CodePoints CodePoints::All() {
  return CodePoints({{0, kLast}});
}

CodePoints CodePoints::Complement() const {
  std::vector<Range> out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.emplace_back(next, kLast);
  return CodePoints(std::move(out));
}

CodePoints CodePoints::Union(const CodePoints& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodePoints(std::move(both));
}

CodePoints CodePoints::Intersect(const CodePoints& other) const {
  return Complement().Union(other.Complement()).Complement();
}

CodePoints CodePoints::Minus(const CodePoints& other) const {
  return Intersect(other.Complement());
}

bool CodePoints::Contains(char32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.second;
  });
}

}  // namespace quire::engine
