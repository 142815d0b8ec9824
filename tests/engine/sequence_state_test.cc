// The states of a sequence. The table allows exactly the transitions that occur.

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/scheduler/sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"

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

// Maps each state that a new sequence can reach to the transitions that lead there.
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

TEST(SequenceStateTest, HasAWaitCauseExactlyWhileWaiting) {
  const std::map<State, std::vector<State>> paths = Paths();
  EXPECT_EQ(paths.size(), 7u) << "two causes of waiting, and five states without one";
  for (const auto& [state, path] : paths) {
    EXPECT_EQ(state.first == SequenceState::kWaiting, state.second != WaitCause::kNone);
  }
}

TEST(SequenceStateDeathTest, RejectsTransitionsOutsideTheTable) {
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

// Requests with several choices, long prompts in small chunks without cache reuse, and a pool that
// is too small for them. Some are cancelled before they are prepared, some later.
class RandomRun {
 public:
  RandomRun(AdmissionMode admission, int max_steps_in_flight, unsigned seed)
      : harness_(Options(admission, max_steps_in_flight)), random_(seed) {}

  void Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      if (Below(3) == 0) Arrive(absl::StrCat("r", i));
      if (!preparing_.empty() && Below(2) == 0) {
        harness_.Prepare(preparing_.front());
        preparing_.pop_front();
      }
      if (!accepted_.empty() && Below(4) == 0) {
        // a recent request, since earlier ones have ended
        const std::size_t back = 1 + Below(std::min<std::size_t>(accepted_.size(), 10));
        harness_.Cancel(accepted_[accepted_.size() - back], CancelSource::kApi);
      }
      harness_.Step();  // also checks the integrity of everything
    }
    for (const auto& request : preparing_) harness_.Prepare(request);
    harness_.RunUntilIdle();
  }
  const Scheduler::TransitionCounts& transitions() {
    return harness_.core.scheduler().transitions();
  }

 private:
  static HarnessOptions Options(AdmissionMode admission, int max_steps_in_flight) {
    HarnessOptions options = MakeHarnessOptions(
        {.usable_pages = 18, .page_size = 16, .max_rows = 9, .max_context_tokens = 192},
        max_steps_in_flight);
    options.engine.admission = admission;
    options.engine.prefill_chunk_tokens = 16;
    return options;
  }
  std::size_t Below(std::size_t bound) { return random_() % bound; }

  void Arrive(const std::string& id) {
    Request request = MakeRequest(id, MakePrompt(Below(1000), 1 + Below(120)),
                                  static_cast<std::int32_t>(1 + Below(60)));
    request.sampling.choice_count = static_cast<std::int32_t>(1 + Below(3));
    accepted_.push_back(harness_.Arrive(std::move(request)));
    preparing_.push_back(accepted_.back());
  }

  Harness harness_;
  std::mt19937 random_;
  std::vector<std::shared_ptr<AcceptedRequest>> accepted_;
  std::deque<std::shared_ptr<AcceptedRequest>> preparing_;
};

TEST(SequenceStateTest, EveryTransitionOccurs) {
  Scheduler::TransitionCounts sum{};
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun run(seed % 3 == 0 ? AdmissionMode::kSafe : AdmissionMode::kOvercommit,
                  seed % 2 == 0 ? 1 : 2, seed);
    ASSERT_NO_FATAL_FAILURE(run.Run(700));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += run.transitions()[i];
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_GT(sum[i], 0) << "transition " << i << " of the table";
  }
}

}  // namespace
}  // namespace quire::engine
