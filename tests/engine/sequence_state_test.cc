// The states of a sequence: the table allows what happens and nothing else.

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "engine/scheduler/sequence.h"
#include "gtest/gtest.h"

namespace quire::engine {
namespace {

using State = std::pair<SequenceState, WaitCause>;

std::vector<State> AllStates() {
  std::vector<State> states;
  for (const SequenceState state :
       {SequenceState::kWaiting, SequenceState::kQueued, SequenceState::kPrefill,
        SequenceState::kDecode, SequenceState::kPreempted, SequenceState::kFinished}) {
    for (const WaitCause cause : {WaitCause::kNone, WaitCause::kPrompt, WaitCause::kFirstChoice}) {
      states.push_back({state, cause});
    }
  }
  return states;
}

State StateOf(const Sequence& sequence) {
  return {sequence.state(), sequence.wait_cause()};
}

// For each state that a new sequence can come to, the transitions that lead there.
std::map<State, std::vector<State>> Paths() {
  std::map<State, std::vector<State>> paths{{StateOf(Sequence()), {}}};
  std::deque<State> open{StateOf(Sequence())};
  while (!open.empty()) {
    const State from = open.front();
    open.pop_front();
    for (const SequenceTransition& transition : kSequenceTransitions) {
      const State to(transition.to, transition.to_cause);
      if (State(transition.from, transition.from_cause) != from || paths.contains(to)) continue;
      paths[to] = paths[from];
      paths[to].push_back(to);
      open.push_back(to);
    }
  }
  return paths;
}

TEST(SequenceStateTest, ACauseIsThereExactlyWhileItWaits) {
  const std::map<State, std::vector<State>> paths = Paths();
  EXPECT_EQ(paths.size(), 7u) << "two causes of waiting, and five states without one";
  for (const auto& [state, path] : paths) {
    EXPECT_EQ(state.first == SequenceState::kWaiting, state.second != WaitCause::kNone);
  }
}

TEST(SequenceStateDeathTest, WhatIsNotInTheTableIsRefused) {
  for (const auto& [from, path] : Paths()) {
    for (const State& to : AllStates()) {
      Sequence sequence;
      for (const State& step : path) sequence.Enter(step.first, step.second);
      ASSERT_EQ(StateOf(sequence), from);
      const bool is_listed =
          std::ranges::any_of(kSequenceTransitions, [&](const SequenceTransition& allowed) {
            return State(allowed.from, allowed.from_cause) == from &&
                   State(allowed.to, allowed.to_cause) == to;
          });
      EXPECT_EQ(FindTransition(from.first, from.second, to.first, to.second).has_value(),
                is_listed);
      if (is_listed) {
        sequence.Enter(to.first, to.second);
        EXPECT_EQ(StateOf(sequence), to);
      } else {
        EXPECT_DEATH(sequence.Enter(to.first, to.second), "transition");
      }
    }
  }
}

}  // namespace
}  // namespace quire::engine
