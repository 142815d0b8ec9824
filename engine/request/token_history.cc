#include "engine/request/token_history.h"

#include <algorithm>
#include <bit>

#include "absl/hash/hash.h"

namespace quire::engine {

namespace {
constexpr std::size_t kMinSlots = 64;
}  // namespace

void TokenHistory::SetPrompt(std::span<const std::int32_t> tokens, std::size_t num_outputs) {
  entries_.clear();
  slots_.clear();
  for (const std::int32_t token : tokens) FindOrAddEntry(token);
  Reserve(entries_.size() + num_outputs);
}

void TokenHistory::CopyFrom(const TokenHistory& other) {
  entries_.reserve(other.entries_.capacity());
  slots_ = other.slots_;
  entries_ = other.entries_;
}

std::size_t TokenHistory::SlotOf(std::int32_t token) const {
  const std::size_t mask = slots_.size() - 1;
  // absl::Hash is seeded per process, so a client cannot choose tokens that collide.
  std::size_t slot = absl::Hash<std::int32_t>()(token) & mask;
  while (slots_[slot] != 0 && entries_[slots_[slot] - 1].token != token) slot = (slot + 1) & mask;
  return slot;
}

void TokenHistory::Reserve(std::size_t entries) {
  if (entries > entries_.capacity()) entries_.reserve(std::max(entries, 2 * entries_.capacity()));
  const std::size_t size = std::bit_ceil(std::max(kMinSlots, 2 * entries));
  if (size <= slots_.size()) return;
  slots_ = std::vector<std::uint32_t>(size);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    slots_[SlotOf(entries_[i].token)] = static_cast<std::uint32_t>(i + 1);
  }
}

kernels::TokenCount& TokenHistory::FindOrAddEntry(std::int32_t token) {
  Reserve(entries_.size() + 1);
  std::uint32_t& slot = slots_[SlotOf(token)];
  if (slot == 0) {
    entries_.push_back({.token = token, .output_count = 0});
    slot = static_cast<std::uint32_t>(entries_.size());
  }
  return entries_[slot - 1];
}

}  // namespace quire::engine
