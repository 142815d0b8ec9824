#pragma once

// The multiples of a number within a range, as an automaton that reads their digits.
//
// Place:      above number_grammar, whose numbers it reads; below the reader of schemas.
// Invariants: the language is exactly the multiples of the range, in the canonical form of
//             number_grammar. An automaton has no more states than its language needs.
// Threads:    pure.

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

  // Absent when the divisor is not positive or exceeds a limit.
  static std::optional<MultipleOf> Parse(const Decimal& divisor);

  bool Contains(const Decimal& value) const;
  // The integers among the multiples.
  MultipleOf Integers() const;
  // The numbers that are multiples of both; absent when they exceed a limit.
  std::optional<MultipleOf> Intersect(const MultipleOf& other) const;
};

// A minimal deterministic automaton that reads a number character by character.
struct NumberAutomaton {
  static constexpr char kSymbols[] = "0123456789-.";
  static constexpr std::size_t kNumSymbols = 12;
  static constexpr std::size_t kMaxStates = 1024;  // each is a rule of the grammar

  struct State {
    std::array<std::int32_t, kNumSymbols> next;  // by symbol; -1: no number goes on with it
    bool accepts = false;
  };
  std::vector<State> states;  // the first one is the start; empty: no number is accepted
};

// The multiples within the range, in canonical form. Takes what it needs from `steps`. Absent when
// the steps run out or the automaton has more than kMaxStates states.
std::optional<NumberAutomaton> MultiplesWithin(const MultipleOf& multiple, const NumberRange& range,
                                               std::int64_t* steps);

// REQUIRES: the automaton accepts a number.
GrammarText::Expression WriteNumbers(const NumberAutomaton& automaton, GrammarText* grammar);

}  // namespace quire::engine
