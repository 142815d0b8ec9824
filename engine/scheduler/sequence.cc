#include "engine/scheduler/sequence.h"

namespace quire::engine {

void AddToHistory(Sequence& sequence, std::int32_t token, bool in_output) {
  const auto [it, is_new] = sequence.history_index.try_emplace(
      token, static_cast<std::uint32_t>(sequence.history.size()));
  if (is_new) sequence.history.push_back({.token = token, .output_count = 0});
  if (in_output) ++sequence.history[it->second].output_count;
}

}  // namespace quire::engine
