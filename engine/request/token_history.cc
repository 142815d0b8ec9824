#include "engine/request/token_history.h"

namespace quire::engine {

void TokenHistory::SetPrompt(std::span<const std::int32_t> tokens) {
  entries_.clear();
  index_.clear();
  for (const std::int32_t token : tokens) EntryOf(token);
}

kernels::TokenCount& TokenHistory::EntryOf(std::int32_t token) {
  const auto [it, is_new] = index_.try_emplace(token, static_cast<std::uint32_t>(entries_.size()));
  if (is_new) entries_.push_back({.token = token, .output_count = 0});
  return entries_[it->second];
}

}  // namespace quire::engine
