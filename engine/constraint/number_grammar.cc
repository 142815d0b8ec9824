#include "engine/constraint/number_grammar.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;

constexpr std::size_t kMaxSignificant = 20;
constexpr std::int64_t kMaxPlaces = 20;
constexpr char kAnyFraction[] = "(\"\\u002e\" [0-9] [0-9]*)?";

Expression Digit(char low, char high) {
  return low == high ? absl::StrCat("\"", std::string(1, low), "\"")
                     : absl::StrCat("[", std::string(1, low), "-", std::string(1, high), "]");
}

Expression Digits(std::size_t count) {
  return GrammarText::Sequence(std::vector<Expression>(count, "[0-9]"));
}

bool AllZero(absl::string_view digits) {
  return digits.find_first_not_of('0') == absl::string_view::npos;
}

// Appends `head tail` to the options if `tail` has a value.
void AddOption(const Expression& head, const std::optional<Expression>& tail,
               std::vector<Expression>* options) {
  if (tail) options->push_back(GrammarText::Sequence({head, *tail}));
}

std::optional<Expression> ChoiceOf(const std::vector<Expression>& options) {
  if (options.empty()) return std::nullopt;
  return GrammarText::Choice(options);
}

// Matches exactly `count` digits whose value is between the bounds. nullopt means no bound.
// REQUIRES: the bounds have `count` digits.
std::optional<Expression> SameLength(std::optional<absl::string_view> low,
                                     std::optional<absl::string_view> high, std::size_t count) {
  if (!low && !high) return Digits(count);
  if (count == 0) return GrammarText::Empty();
  const char from = low ? (*low)[0] : '0', to = high ? (*high)[0] : '9';
  const auto rest = [](std::optional<absl::string_view> bound) {
    return bound ? std::optional(bound->substr(1)) : std::nullopt;
  };
  if (from > to) return std::nullopt;
  if (from == to) {
    const auto tail = SameLength(rest(low), rest(high), count - 1);
    if (!tail) return std::nullopt;
    return GrammarText::Sequence({Digit(from, from), *tail});
  }
  std::vector<Expression> options;
  char free_from = from, free_to = to;
  if (low) {
    AddOption(Digit(from, from), SameLength(rest(low), std::nullopt, count - 1), &options);
    ++free_from;
  }
  if (high) {
    AddOption(Digit(to, to), SameLength(std::nullopt, rest(high), count - 1), &options);
    --free_to;
  }
  if (free_from <= free_to) {
    options.push_back(GrammarText::Sequence({Digit(free_from, free_to), Digits(count - 1)}));
  }
  return ChoiceOf(options);
}

// Matches natural numbers without leading zeros from `low` to `high`. If `high` is nullopt, there
// is no upper limit.
std::optional<Expression> NaturalsWithin(const std::string& low,
                                         const std::optional<std::string>& high) {
  std::vector<Expression> options;
  const std::size_t last = high ? high->size() : low.size();
  for (std::size_t count = low.size(); count <= last; ++count) {
    // Numbers of more than one digit start at 10..., because there are no leading zeros.
    std::string smallest(count, '0');
    if (count > 1) smallest[0] = '1';
    const std::string& from = count == low.size() ? low : smallest;
    const std::optional<absl::string_view> to =
        high && count == high->size() ? std::optional<absl::string_view>(*high) : std::nullopt;
    if (const auto option = SameLength(from, to, count)) options.push_back(*option);
  }
  if (!high) {
    options.push_back(GrammarText::Sequence({"[1-9]", Digits(low.size()), "[0-9]*"}));
  }
  return ChoiceOf(options);
}

std::string PlusOne(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '9') {
      ++digits[i];
      return digits;
    }
    digits[i] = '0';
  }
  digits.insert(digits.begin(), '1');
  return digits;
}

// REQUIRES: digits are not "0".
std::string MinusOne(std::string digits) {
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i] != '0') {
      --digits[i];
      break;
    }
    digits[i] = '9';
  }
  const std::size_t first = digits.find_first_not_of('0');
  return first == std::string::npos ? "0" : digits.substr(first);
}

bool LessNatural(const std::string& a, const std::string& b) {
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

struct FractionBound {
  absl::string_view digits;
  bool exclusive = false;
};
using Limit = std::optional<FractionBound>;

// Matches the rest of a fraction whose digits so far equal those of each given bound. The fraction
// may end here if `may_end` is set and the bounds allow it.
std::optional<Expression> FractionRest(const Limit& low, const Limit& high, bool may_end) {
  if (!low && !high) return may_end ? "[0-9]*" : "[0-9] [0-9]*";
  const bool low_zero = !low || AllZero(low->digits), high_zero = high && AllZero(high->digits);
  const bool ends =
      (!low || (low_zero && !low->exclusive)) && (!high || !high_zero || !high->exclusive);
  std::vector<Expression> options;
  if (may_end && ends) options.push_back(GrammarText::Empty());
  if (high_zero && low_zero) {  // only zeros remain at or below the high bound
    if (high->exclusive || (low && low->exclusive)) return ChoiceOf(options);
    return may_end ? "\"0\"*" : "\"0\" \"0\"*";
  }
  if (low && low_zero && !high) {
    if (low->exclusive) return "\"0\"* [1-9] [0-9]*";
    return may_end ? "[0-9]*" : "[0-9] [0-9]*";
  }
  const auto digit = [](const Limit& limit) {
    return limit->digits.empty() ? '0' : limit->digits[0];
  };
  const auto rest = [](const Limit& limit) {
    return limit ? Limit(FractionBound{limit->digits.substr(limit->digits.empty() ? 0 : 1),
                                       limit->exclusive})
                 : Limit();
  };
  const char from = low ? digit(low) : '0', to = high ? digit(high) : '9';
  if (from == to) {
    AddOption(Digit(from, from), FractionRest(rest(low), rest(high), true), &options);
  } else if (from < to) {
    char free_from = from, free_to = to;
    if (low) {
      AddOption(Digit(from, from), FractionRest(rest(low), std::nullopt, true), &options);
      ++free_from;
    }
    if (high) {
      AddOption(Digit(to, to), FractionRest(std::nullopt, rest(high), true), &options);
      --free_to;
    }
    if (free_from <= free_to) {
      options.push_back(GrammarText::Sequence({Digit(free_from, free_to), "[0-9]*"}));
    }
  }
  return ChoiceOf(options);
}

// Matches a fraction with its decimal point. Also matches the empty text if the bounds allow it.
std::optional<Expression> Fraction(const Limit& low, const Limit& high) {
  if (!low && !high) return kAnyFraction;
  std::vector<Expression> options;
  const bool allows_empty = (!low || (AllZero(low->digits) && !low->exclusive)) &&
                            (!high || !AllZero(high->digits) || !high->exclusive);
  if (allows_empty) options.push_back(GrammarText::Empty());
  AddOption("\"\\u002e\"", FractionRest(low, high, false), &options);
  return ChoiceOf(options);
}

// Matches non-negative numbers from `low` to `high`. REQUIRES: neither is negative.
std::optional<Expression> MagnitudesWithin(const Bound& low, const std::optional<Bound>& high) {
  const Limit low_fraction = FractionBound{low.value.fraction, low.exclusive};
  const Limit high_fraction =
      high ? Limit(FractionBound{high->value.fraction, high->exclusive}) : Limit();
  std::vector<Expression> options;
  const auto add_whole = [&](const std::string& whole, const Limit& from, const Limit& to) {
    AddOption(GrammarText::Literal(whole), Fraction(from, to), &options);
  };
  if (high && low.value.whole == high->value.whole) {
    add_whole(low.value.whole, low_fraction, high_fraction);
    return ChoiceOf(options);
  }
  add_whole(low.value.whole, low_fraction, std::nullopt);
  const std::string from = PlusOne(low.value.whole);
  std::optional<std::string> to;
  if (high) {
    add_whole(high->value.whole, std::nullopt, high_fraction);
    to = MinusOne(high->value.whole);
  }
  if (!to || !LessNatural(*to, from)) {
    if (const auto whole = NaturalsWithin(from, to)) {
      options.push_back(GrammarText::Sequence({*whole, kAnyFraction}));
    }
  }
  return ChoiceOf(options);
}

// Splits a range at zero into magnitudes with and without a minus.
template <typename Within>
std::optional<Expression> SplitAtZero(const NumberRange& range, const Within& within) {
  if (range.empty()) return std::nullopt;
  const Bound zero{.value = {.whole = "0", .fraction = ""}};
  std::vector<Expression> options;
  if (!range.low || range.low->value.negative) {
    // The magnitudes start above 0, or at the magnitude of a negative high bound.
    Bound from = zero;
    from.exclusive = true;
    if (range.high && range.high->value.negative) {
      from = Bound{range.high->value.Negated(), range.high->exclusive};
    }
    std::optional<Bound> to;
    if (range.low) to = Bound{range.low->value.Negated(), range.low->exclusive};
    AddOption("\"-\"", within(from, to), &options);
  }
  if (!range.high || !range.high->value.negative) {
    const Bound from = range.low && !range.low->value.negative ? *range.low : zero;
    if (const auto positive = within(from, range.high)) options.push_back(*positive);
  }
  return ChoiceOf(options);
}

}  // namespace

absl::StatusOr<Decimal> Decimal::Parse(absl::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(absl::StrCat(
      text.substr(0, 40), " has more than ", kMaxSignificant, " significant digits, or more than ",
      kMaxPlaces, " digits before or after the point"));
  Decimal out;
  out.negative = absl::ConsumePrefix(&text, "-");
  std::string digits;
  std::int64_t point = -1, exponent = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      point = static_cast<std::int64_t>(digits.size());
    } else if (text[i] == 'e' || text[i] == 'E') {
      if (!absl::SimpleAtoi(text.substr(i + 1), &exponent)) return bad;
      break;
    } else if (absl::ascii_isdigit(static_cast<unsigned char>(text[i]))) {
      digits.push_back(text[i]);
    } else {
      return bad;
    }
  }
  if (digits.empty() || exponent < -100 || exponent > 100 || digits.size() > 400) return bad;
  if (point < 0) point = static_cast<std::int64_t>(digits.size());
  point += exponent;
  if (point < 0) digits.insert(0, static_cast<std::size_t>(-point), '0');
  point = std::max<std::int64_t>(point, 0);
  if (point > static_cast<std::int64_t>(digits.size())) {
    digits.append(static_cast<std::size_t>(point) - digits.size(), '0');
  }
  out.whole = digits.substr(0, static_cast<std::size_t>(point));
  out.fraction = digits.substr(static_cast<std::size_t>(point));
  out.whole.erase(0, std::min(out.whole.find_first_not_of('0'), out.whole.size()));
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  std::string significant = out.whole + out.fraction;
  significant.erase(0, std::min(significant.find_first_not_of('0'), significant.size()));
  significant.erase(significant.find_last_not_of('0') + 1);
  if (significant.size() > kMaxSignificant || out.whole.size() > kMaxPlaces ||
      out.fraction.size() > kMaxPlaces) {
    return bad;
  }
  if (out.whole.empty()) out.whole.push_back('0');
  if (significant.empty()) out.negative = false;
  return out;
}

Decimal Decimal::Negated() const {
  Decimal out = *this;
  out.negative = !negative && (whole != "0" || !fraction.empty());
  return out;
}

std::string Decimal::ToString() const {
  return absl::StrCat(negative ? "-" : "", whole, fraction.empty() ? "" : ".", fraction);
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a == b) return 0;
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const bool is_less = a.whole == b.whole ? a.fraction < b.fraction : LessNatural(a.whole, b.whole);
  return is_less == a.negative ? 1 : -1;
}

bool NumberRange::empty() const {
  if (!low || !high) return false;
  const int order = Compare(low->value, high->value);
  return order > 0 || (order == 0 && (low->exclusive || high->exclusive));
}

bool NumberRange::Contains(const Decimal& value) const {
  const int from = low ? Compare(value, low->value) : 1,
            to = high ? Compare(value, high->value) : -1;
  return (from > 0 || (from == 0 && !low->exclusive)) && (to < 0 || (to == 0 && !high->exclusive));
}

std::optional<Expression> IntegersWithin(const NumberRange& range) {
  return SplitAtZero(range, [](const Bound& low, const std::optional<Bound>& high) {
    const bool above = !low.value.fraction.empty() || low.exclusive;
    const std::string from = above ? PlusOne(low.value.whole) : low.value.whole;
    std::optional<std::string> to;
    if (high) {
      to = high->value.whole;
      if (high->value.fraction.empty() && high->exclusive) {
        if (*to == "0") return std::optional<Expression>();
        to = MinusOne(*to);
      }
      if (LessNatural(*to, from)) return std::optional<Expression>();
    }
    return NaturalsWithin(from, to);
  });
}

std::optional<Expression> NumbersWithin(const NumberRange& range) {
  return SplitAtZero(range, MagnitudesWithin);
}

}  // namespace quire::engine
