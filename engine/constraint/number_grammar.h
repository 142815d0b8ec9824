#pragma once

// Grammars of JSON numbers within a range, without exponents.
//
// Place:      below json_schema; above grammar_text.
// Invariants: the language is exactly the numbers of the range, in the canonical form of
//             docs/structured_output.md: no `+`, no leading zero, no `-0`.
// Threads:    pure.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

// A number as written in a schema, exactly.
struct Decimal {
  bool negative = false;  // never of zero
  std::string whole;      // digits without leading zeros, "0" for zero
  std::string fraction;   // digits without trailing zeros

  // INVALID_ARGUMENT when it is no number of JSON, or has more than 20 significant digits or more
  // than 20 before or behind the point. A 64-bit integer has at most 20.
  static absl::StatusOr<Decimal> Parse(absl::string_view text);

  bool is_integer() const { return fraction.empty(); }
  Decimal Negated() const;
  std::string ToString() const;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};
int Compare(const Decimal& a, const Decimal& b);  // below, at or above zero

struct Bound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<Bound> low, high;
  bool empty() const;
  bool Contains(const Decimal& value) const;
};

// Absent when no integer, or no number, is in the range.
std::optional<GrammarText::Expression> IntegersWithin(const NumberRange& range);
std::optional<GrammarText::Expression> NumbersWithin(const NumberRange& range);

}  // namespace quire::engine
