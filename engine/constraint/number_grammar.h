#pragma once

// Grammars of JSON numbers within a range, without exponents.
//
// Place:      below the reader of schemas; above grammar_text.
// Invariants: the language is exactly the numbers of the range, in the canonical form of
//             docs/structured_output.md: no `+`, no leading zero, no `-0`.
// Threads:    pure functions.

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/grammar_text.h"

namespace quire::engine {

// The exact value of a number in a schema.
struct Decimal {
  bool negative = false;  // false for zero
  std::string whole;      // digits without leading zeros, "0" for zero
  std::string fraction;   // digits without trailing zeros

  // Returns INVALID_ARGUMENT if the text is not a JSON number, has more than 20 significant digits,
  // or has more than 20 digits before or after the point. A 64-bit integer has at most 20 digits.
  static absl::StatusOr<Decimal> Parse(absl::string_view text);

  bool is_integer() const { return fraction.empty(); }
  Decimal Negated() const;
  std::string ToString() const;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};
// Returns less than, equal to or greater than zero.
int Compare(const Decimal& a, const Decimal& b);

struct Bound {
  Decimal value;
  bool exclusive = false;
};

struct NumberRange {
  std::optional<Bound> low, high;
  bool empty() const;
  bool Contains(const Decimal& value) const;
};

// Each returns nullopt if the range contains no such number.
std::optional<GrammarText::Expression> IntegersWithin(const NumberRange& range);
std::optional<GrammarText::Expression> NumbersWithin(const NumberRange& range);

}  // namespace quire::engine
