#pragma once

// Builds automata that read the digits of a number and accept the multiples of a divisor within a
// range.
//
// Place:      above number_grammar, whose numbers it reads; below the reader of schemas.
// Invariants: an automaton accepts exactly the multiples in the range, in the canonical form of
//             number_grammar, and is minimal.
// Threads:    pure functions.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/constraint/grammar_text.h"
#include "engine/constraint/number_grammar.h"

namespace quire::engine {

// The multiples of units / 10^places.
struct MultipleOf {
  static constexpr std::int64_t kMaxUnits = 10'000;
  static constexpr std::int32_t kMaxPlaces = 9;

  std::int64_t units = 1;   // 1 to kMaxUnits
  std::int32_t places = 0;  // 0 to kMaxPlaces

  // Returns nullopt when the divisor is not positive or exceeds a limit.
  static std::optional<MultipleOf> Parse(const Decimal& divisor);

  bool Contains(const Decimal& value) const;
  // Returns the multiples that are integers.
  MultipleOf Integers() const;
  // Returns the numbers that are multiples of both, or nullopt if the result exceeds a limit.
  std::optional<MultipleOf> Intersect(const MultipleOf& other) const;
};

// A minimal deterministic automaton that reads a number character by character.
struct NumberAutomaton {
  static constexpr char kSymbols[] = "0123456789-.";
  static constexpr std::size_t kNumSymbols = 12;
  static constexpr std::size_t kMaxStates = 1024;  // each state becomes a grammar rule

  struct State {
    // The next state for each symbol; -1: no number continues with the symbol.
    std::array<std::int32_t, kNumSymbols> next;
    bool accepts = false;
  };
  std::vector<State> states;  // the first is the start state; empty: no number is accepted
};

// Returns the multiples within the range, in canonical form. Subtracts the used steps from `steps`.
// Returns nullopt when the steps run out or the automaton exceeds kMaxStates states.
std::optional<NumberAutomaton> MultiplesWithin(const MultipleOf& multiple, const NumberRange& range,
                                               std::int64_t* steps);

// REQUIRES: the automaton accepts a number.
GrammarText::Expression WriteNumbers(const NumberAutomaton& automaton, GrammarText* grammar);

}  // namespace quire::engine
