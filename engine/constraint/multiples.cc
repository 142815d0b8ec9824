#include "engine/constraint/multiples.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "engine/constraint/code_points.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;
using AutomatonState = NumberAutomaton::State;

constexpr std::size_t kMinus = 10, kPoint = 11;  // positions in NumberAutomaton::kSymbols
// Maximum number of states before minimization, and the number of schema steps that one state
// costs.
constexpr std::size_t kMaxUnminimizedStates = 1 << 14;
constexpr std::int64_t kStepsOfState = 64;

std::int64_t PowerOfTen(std::int32_t exponent) {
  std::int64_t power = 1;
  for (; exponent > 0; --exponent) power *= 10;
  return power;
}

// Removes trailing zeros of the fraction. Returns nullopt when the result exceeds a limit of
// MultipleOf.
std::optional<MultipleOf> Reduce(std::int64_t units, std::int32_t places) {
  while (places > 0 && units % 10 == 0) {
    units /= 10;
    --places;
  }
  if (units > MultipleOf::kMaxUnits || places > MultipleOf::kMaxPlaces) return std::nullopt;
  return MultipleOf{.units = units, .places = places};
}

enum class Phase : std::uint8_t { kStart, kMinus, kWhole, kPoint, kFraction };

// Result of comparing the digits read so far with the same number of digits of a bound.
struct Comparison {
  // Number of digits of the current part (whole part or fraction) read so far. The count stops
  // growing once the bound has no more digits in this part.
  std::int32_t digits = 0;
  std::int32_t order = 0;  // less than, equal to or greater than zero

  friend auto operator<=>(const Comparison&, const Comparison&) = default;
};

// Compares non-negative numbers with a bound.
class Comparator {
 public:
  explicit Comparator(const Decimal& bound) : bound_(bound) {}

  Comparison AfterWholeDigit(Comparison so_far, char digit) const {
    const auto length = static_cast<std::int32_t>(bound_.whole.size());
    if (so_far.digits < length && so_far.order == 0) {
      so_far.order = digit - bound_.whole[static_cast<std::size_t>(so_far.digits)];
      so_far.order = (so_far.order > 0) - (so_far.order < 0);
    }
    if (so_far.digits == length) so_far.order = 1;  // numbers have no leading zeros
    so_far.digits = std::min(so_far.digits + 1, length + 1);
    return so_far;
  }

  // Returns the comparison at the end of the whole part, before any digit of the fraction.
  Comparison AfterWhole(Comparison so_far) const {
    const bool is_shorter = so_far.digits < static_cast<std::int32_t>(bound_.whole.size());
    return {.digits = 0, .order = is_shorter ? -1 : so_far.order};
  }

  Comparison AfterFractionDigit(Comparison so_far, char digit) const {
    if (so_far.order != 0) return so_far;
    const auto at = static_cast<std::size_t>(so_far.digits);
    const char other = at < bound_.fraction.size() ? bound_.fraction[at] : '0';
    if (digit != other) return {.digits = 0, .order = digit < other ? -1 : 1};
    if (at < bound_.fraction.size()) ++so_far.digits;
    return so_far;
  }

  // Returns the order of the numbers if no digit follows. REQUIRES: `so_far` is a result of
  // AfterWhole or AfterFractionDigit.
  std::int32_t AtEnd(const Comparison& so_far) const {
    const bool is_shorter =
        so_far.order == 0 && static_cast<std::size_t>(so_far.digits) < bound_.fraction.size();
    return is_shorter ? -1 : so_far.order;
  }

 private:
  const Decimal bound_;
};

// The range of magnitudes for one sign.
struct Side {
  explicit Side(const Bound& from) : low(from.value), low_exclusive(from.exclusive) {}

  Comparator low;
  bool low_exclusive;
  std::optional<Comparator> high;
  bool high_exclusive = false;
};

std::optional<Side> SideOf(const NumberRange& range, bool negative) {
  const auto magnitude = [](const Bound& bound) {
    return Bound{.value = bound.value.negative ? bound.value.Negated() : bound.value,
                 .exclusive = bound.exclusive};
  };
  const std::optional<Bound>& near = negative ? range.high : range.low;
  const std::optional<Bound>& far = negative ? range.low : range.high;
  if (far && far->value.negative != negative) return std::nullopt;
  // Magnitudes start at zero unless the bound nearer to zero has this sign. With a minus, zero
  // itself is excluded, because it is written without a minus.
  Bound from{.value = {.negative = false, .whole = "0", .fraction = ""}, .exclusive = negative};
  if (near && near->value.negative == negative) from = magnitude(*near);
  Side side(from);
  if (far) {
    side.high.emplace(magnitude(*far).value);
    side.high_exclusive = far->exclusive;
  }
  return side;
}

// Minimizes with Moore's algorithm: splits classes of states until all states of a class have
// transitions to the same classes and agree on acceptance. Classes are numbered in the order of
// their first states. Returns nullopt when the steps run out.
std::optional<std::vector<std::int32_t>> FindClasses(const std::vector<AutomatonState>& states,
                                                     std::int64_t* steps) {
  constexpr std::size_t kAccepts = NumberAutomaton::kNumSymbols, kOwn = kAccepts + 1;
  std::vector<std::int32_t> classes(states.size(), 0);
  for (std::size_t count = 0;;) {
    *steps -= static_cast<std::int64_t>(states.size()) * kStepsOfState / 4;
    if (*steps < 0) return std::nullopt;
    std::map<std::array<std::int32_t, kOwn + 1>, std::int32_t> known;
    std::vector<std::int32_t> refined(states.size());
    for (std::size_t at = 0; at < states.size(); ++at) {
      std::array<std::int32_t, kOwn + 1> key;
      for (std::size_t symbol = 0; symbol < NumberAutomaton::kNumSymbols; ++symbol) {
        const std::int32_t to = states[at].next[symbol];
        key[symbol] = to < 0 ? -1 : classes[static_cast<std::size_t>(to)];
      }
      key[kAccepts] = states[at].accepts ? 1 : 0;
      key[kOwn] = classes[at];
      refined[at] = known.emplace(key, static_cast<std::int32_t>(known.size())).first->second;
    }
    classes = std::move(refined);
    if (known.size() == std::exchange(count, known.size())) return classes;
  }
}

// Returns the automaton with one state per class.
NumberAutomaton MergeClasses(const std::vector<AutomatonState>& states,
                             const std::vector<std::int32_t>& classes) {
  NumberAutomaton merged;
  for (std::size_t at = 0; at < states.size(); ++at) {
    const auto own = static_cast<std::size_t>(classes[at]);
    if (own < merged.states.size()) continue;
    AutomatonState& state = merged.states.emplace_back(states[at]);
    for (std::int32_t& to : state.next) {
      if (to >= 0) to = classes[static_cast<std::size_t>(to)];
    }
  }
  return merged;
}

// Returns an automaton that reads the digits of an integer and accepts the multiples of `units`.
// Its states are classes of residues modulo `units`.
std::optional<NumberAutomaton> ResiduesOf(std::int64_t units, std::int64_t* steps) {
  std::vector<AutomatonState> states(static_cast<std::size_t>(units));
  for (std::int64_t residue = 0; residue < units; ++residue) {
    AutomatonState& state = states[static_cast<std::size_t>(residue)];
    state.accepts = residue == 0;
    state.next.fill(-1);
    for (std::int64_t digit = 0; digit < 10; ++digit) {
      state.next[static_cast<std::size_t>(digit)] =
          static_cast<std::int32_t>((residue * 10 + digit) % units);
    }
  }
  const auto classes = FindClasses(states, steps);
  return classes ? std::optional(MergeClasses(states, *classes)) : std::nullopt;
}

class MultiplesBuilder {
 public:
  MultiplesBuilder(const MultipleOf& multiple, const NumberRange& range, std::int64_t* steps)
      : multiple_(multiple), sides_{SideOf(range, false), SideOf(range, true)}, steps_(*steps) {}

  std::optional<NumberAutomaton> Build() {
    auto residues = ResiduesOf(multiple_.units, &steps_);
    if (!residues) return std::nullopt;
    residues_ = *std::move(residues);
    IndexOf(State{});
    for (std::size_t at = 0; at < found_states_.size(); ++at) {
      steps_ -= kStepsOfState;
      if (steps_ < 0 || found_states_.size() > kMaxUnminimizedStates) return std::nullopt;
      const State state = found_states_[at];
      NumberAutomaton::State edges{.next = {}, .accepts = Accepts(state)};
      for (std::size_t symbol = 0; symbol < edges.next.size(); ++symbol) {
        const std::optional<State> next = Next(state, symbol);
        edges.next[symbol] = next ? IndexOf(*next) : -1;
      }
      automaton_.states.push_back(edges);
    }
    RemoveDeadEnds();
    const auto classes = FindClasses(automaton_.states, &steps_);
    if (!classes) return std::nullopt;
    NumberAutomaton minimal = MergeClasses(automaton_.states, *classes);
    if (minimal.states.size() > NumberAutomaton::kMaxStates) return std::nullopt;
    return minimal;
  }

 private:
  struct State {
    Phase phase = Phase::kStart;
    bool negative = false;
    bool is_zero = false;  // the whole part is "0"
    Comparison low, high;
    std::int32_t residue = 0;  // class of the residue
    std::int32_t places = 0;   // significant digits of the fraction so far

    friend auto operator<=>(const State&, const State&) = default;
  };

  std::int32_t IndexOf(const State& state) {
    const auto [entry, added] = index_.emplace(state, static_cast<std::int32_t>(index_.size()));
    if (added) found_states_.push_back(state);
    return entry->second;
  }

  const std::optional<Side>& SideAt(const State& state) const {
    return sides_[state.negative ? 1 : 0];
  }

  std::optional<State> Next(const State& state, std::size_t symbol) const {
    State next = state;
    if (symbol == kMinus) {
      if (state.phase != Phase::kStart || !sides_[1]) return std::nullopt;
      next.phase = Phase::kMinus;
      next.negative = true;
      return next;
    }
    if (!SideAt(state)) return std::nullopt;
    if (symbol == kPoint) {
      if (state.phase != Phase::kWhole || multiple_.places == 0) return std::nullopt;
      next.phase = Phase::kPoint;
      EndWhole(&next);
      return next;
    }
    const char c = NumberAutomaton::kSymbols[symbol];
    const Side& side = *SideAt(state);
    if (state.phase == Phase::kPoint || state.phase == Phase::kFraction) {
      if (state.places == multiple_.places && symbol != 0) return std::nullopt;
      if (state.places < multiple_.places) {
        next.residue = ResidueAfter(state.residue, symbol);
        ++next.places;
      }
      next.low = side.low.AfterFractionDigit(state.low, c);
      if (side.high) next.high = side.high->AfterFractionDigit(state.high, c);
      next.phase = Phase::kFraction;
      return next;
    }
    if (state.is_zero) return std::nullopt;
    next.is_zero = state.phase != Phase::kWhole && symbol == 0;
    next.phase = Phase::kWhole;
    next.residue = ResidueAfter(state.residue, symbol);
    next.low = side.low.AfterWholeDigit(state.low, c);
    if (side.high) next.high = side.high->AfterWholeDigit(state.high, c);
    return next;
  }

  void EndWhole(State* state) const {
    const Side& side = *SideAt(*state);
    state->is_zero = false;
    state->low = side.low.AfterWhole(state->low);
    if (side.high) state->high = side.high->AfterWhole(state->high);
  }

  bool Accepts(State state) const {
    if (state.phase != Phase::kWhole && state.phase != Phase::kFraction) return false;
    if (state.phase == Phase::kWhole) EndWhole(&state);
    const Side& side = *SideAt(state);
    const std::int32_t low = side.low.AtEnd(state.low);
    if (low < 0 || (low == 0 && side.low_exclusive)) return false;
    if (side.high) {
      const std::int32_t high = side.high->AtEnd(state.high);
      if (high > 0 || (high == 0 && side.high_exclusive)) return false;
    }
    std::int32_t residue = state.residue;
    for (std::int32_t i = state.places; i < multiple_.places; ++i) {
      residue = ResidueAfter(residue, 0);
    }
    return residues_.states[static_cast<std::size_t>(residue)].accepts;
  }

  std::int32_t ResidueAfter(std::int32_t residue, std::size_t digit) const {
    return residues_.states[static_cast<std::size_t>(residue)].next[digit];
  }

  // Removes the edges to states from which no accepting state can be reached.
  void RemoveDeadEnds() {
    std::vector<NumberAutomaton::State>& states = automaton_.states;
    std::vector<std::vector<std::int32_t>> before(states.size());
    std::deque<std::int32_t> live;
    std::vector<bool> is_live(states.size());
    for (std::size_t from = 0; from < states.size(); ++from) {
      for (const std::int32_t to : states[from].next) {
        if (to >= 0) before[static_cast<std::size_t>(to)].push_back(static_cast<int>(from));
      }
      if (!states[from].accepts) continue;
      is_live[from] = true;
      live.push_back(static_cast<std::int32_t>(from));
    }
    for (; !live.empty(); live.pop_front()) {
      for (const std::int32_t from : before[static_cast<std::size_t>(live.front())]) {
        if (is_live[static_cast<std::size_t>(from)]) continue;
        is_live[static_cast<std::size_t>(from)] = true;
        live.push_back(from);
      }
    }
    for (NumberAutomaton::State& state : states) {
      for (std::int32_t& to : state.next) {
        if (to >= 0 && !is_live[static_cast<std::size_t>(to)]) to = -1;
      }
    }
    if (!is_live[0]) states.clear();
  }

  const MultipleOf multiple_;
  // Index 0: numbers without a minus; index 1: numbers with a minus.
  const std::array<std::optional<Side>, 2> sides_;
  std::int64_t& steps_;
  NumberAutomaton residues_;
  std::map<State, std::int32_t> index_;
  std::vector<State> found_states_;  // in the order of their indices in index_
  NumberAutomaton automaton_;
};

}  // namespace

std::optional<MultipleOf> MultipleOf::Parse(const Decimal& divisor) {
  const std::string digits = divisor.whole + divisor.fraction;
  std::int64_t units = 0;
  if (divisor.negative || digits.size() > 18 || !absl::SimpleAtoi(digits, &units) || units == 0) {
    return std::nullopt;
  }
  return Reduce(units, static_cast<std::int32_t>(divisor.fraction.size()));
}

bool MultipleOf::Contains(const Decimal& value) const {
  const auto num_places = static_cast<std::int32_t>(value.fraction.size());
  if (num_places > places) return false;
  std::int64_t residue = 0;
  for (const absl::string_view digits : {value.whole, value.fraction}) {
    for (const char digit : digits) residue = (residue * 10 + (digit - '0')) % units;
  }
  return residue * (PowerOfTen(places - num_places) % units) % units == 0;
}

MultipleOf MultipleOf::Integers() const {
  return {.units = units / std::gcd(units, PowerOfTen(places)), .places = 0};
}

std::optional<MultipleOf> MultipleOf::Intersect(const MultipleOf& other) const {
  // The product may exceed kMaxUnits by a factor of 10^kMaxPlaces, because Reduce removes trailing
  // zeros.
  constexpr std::int64_t kMaxProduct = kMaxUnits * 1'000'000'000;
  const std::int32_t max_places = std::max(places, other.places);
  const std::int64_t own_units = units * PowerOfTen(max_places - places);
  const std::int64_t other_units = other.units * PowerOfTen(max_places - other.places);
  const std::int64_t factor = own_units / std::gcd(own_units, other_units);
  if (factor > kMaxProduct / other_units) return std::nullopt;
  return Reduce(factor * other_units, max_places);
}

std::optional<NumberAutomaton> MultiplesWithin(const MultipleOf& multiple, const NumberRange& range,
                                               std::int64_t* steps) {
  if (range.empty()) return NumberAutomaton{};
  return MultiplesBuilder(multiple, range, steps).Build();
}

Expression WriteNumbers(const NumberAutomaton& automaton, GrammarText* grammar) {
  std::vector<GrammarText::Rule> rules;
  for (std::size_t i = 0; i < automaton.states.size(); ++i) rules.push_back(grammar->Reserve());
  for (std::size_t i = 0; i < automaton.states.size(); ++i) {
    const NumberAutomaton::State& state = automaton.states[i];
    std::map<std::int32_t, std::vector<CodePoints::Range>> symbols;  // by target state
    for (std::size_t symbol = 0; symbol < NumberAutomaton::kNumSymbols; ++symbol) {
      const auto c = static_cast<char32_t>(NumberAutomaton::kSymbols[symbol]);
      if (state.next[symbol] >= 0) symbols[state.next[symbol]].emplace_back(c, c);
    }
    std::vector<Expression> options;
    if (state.accepts) options.push_back(GrammarText::Empty());
    for (auto& [to, set] : symbols) {
      options.push_back(
          GrammarText::Sequence({grammar->Character(CodePoints(std::move(set)), Spelling::kPlain),
                                 GrammarText::Reference(rules[static_cast<std::size_t>(to)])}));
    }
    // No edge leads to a state without options.
    if (!options.empty()) grammar->Define(rules[i], GrammarText::Choice(options));
  }
  return GrammarText::Reference(rules[0]);
}

}  // namespace quire::engine
