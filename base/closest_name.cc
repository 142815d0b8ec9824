#include "base/closest_name.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"

namespace quire {
namespace {

constexpr std::size_t kMaxBytes = 64;
using Row = std::array<std::uint8_t, kMaxBytes + 1>;

bool IsSame(char a, char b) {
  return absl::ascii_tolower(static_cast<unsigned char>(a)) ==
         absl::ascii_tolower(static_cast<unsigned char>(b));
}

// REQUIRES: both names have at most kMaxBytes.
int CountEdits(absl::string_view a, absl::string_view b) {
  // Rows i - 2, i - 1 and i of the table of edits between prefixes.
  Row before{};
  Row above{};
  Row row{};
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<std::uint8_t>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = static_cast<std::uint8_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int substituted = above[j - 1] + (IsSame(a[i - 1], b[j - 1]) ? 0 : 1);
      int edits = std::min({above[j] + 1, row[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && IsSame(a[i - 1], b[j - 2]) && IsSame(a[i - 2], b[j - 1])) {
        edits = std::min(edits, before[j - 2] + 1);
      }
      row[j] = static_cast<std::uint8_t>(edits);
    }
  }
  return row[b.size()];
}

}  // namespace

absl::string_view ClosestName(absl::string_view name, std::span<const absl::string_view> known) {
  absl::string_view closest;
  if (name.size() > kMaxBytes) return closest;
  int min_edits = 3;
  for (const absl::string_view candidate : known) {
    if (candidate.size() > kMaxBytes) continue;
    const int limit = name.size() < 2 ? 0 : std::min(name.size(), candidate.size()) < 4 ? 1 : 2;
    const int edits = CountEdits(name, candidate);
    if (edits > limit || edits >= min_edits) continue;
    closest = candidate;
    min_edits = edits;
  }
  return closest;
}

}  // namespace quire
