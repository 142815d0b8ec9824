#include "engine/scheduler/sequence.h"

#include "base/check.h"

namespace quire::engine {

std::optional<std::size_t> FindTransition(SequenceState from, WaitCause from_cause,
                                          SequenceState to, WaitCause to_cause) {
  for (std::size_t i = 0; i < kSequenceTransitions.size(); ++i) {
    const SequenceTransition& allowed = kSequenceTransitions[i];
    if (allowed.from == from && allowed.from_cause == from_cause && allowed.to == to &&
        allowed.to_cause == to_cause) {
      return i;
    }
  }
  return std::nullopt;
}

std::size_t Sequence::Enter(SequenceState to, WaitCause cause) {
  const std::optional<std::size_t> transition = FindTransition(state_, wait_cause_, to, cause);
  QUIRE_CHECK(transition.has_value());
  state_ = to;
  wait_cause_ = cause;
  return *transition;
}

}  // namespace quire::engine
