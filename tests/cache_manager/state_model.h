#pragma once

// The state slots of CacheModel: lists without counters or derived states.

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace quire::cache {

struct RowStateModel {
  std::uint32_t own = 0, source = 0;  // slots; 0 means none
  std::uint32_t tokens = 0, prompt_tokens = 0, branch_position = 0;
  std::uint32_t snapshot = 0, snapshot_tokens = 0;
  std::vector<std::pair<std::uint32_t, std::uint64_t>> tentative = {};  // slots and their uses

  // Returns the tokens after which a step from `begin` to `tokens` writes a snapshot.
  std::uint32_t Border(std::uint32_t begin, std::uint32_t page_size, std::uint32_t interval) const {
    if (begin < branch_position && branch_position <= tokens) return branch_position;
    std::uint32_t last = 0, spaced = 0;
    for (std::uint32_t at = page_size; at <= tokens; at += page_size) {
      if (at + 17 <= prompt_tokens) last = at;
      if (interval > 0 && at % interval == 0 && at + 17 <= prompt_tokens) spaced = at;
    }
    const bool is_last = at_end(last, page_size);
    if (is_last && begin < last) return last;
    return begin < spaced ? spaced : 0;
  }

 private:
  // True if `at` is the last border of the whole prompt that a repeated prompt can use. Otherwise a
  // later step reaches another one.
  bool at_end(std::uint32_t at, std::uint32_t page_size) const {
    return at > 0 && at + page_size + 17 > prompt_tokens;
  }
};

class StateModel {
 public:
  explicit StateModel(std::uint32_t num_slots) : uses_(num_slots) {
    for (std::uint32_t slot = num_slots; slot > 1; --slot) free_.push_back(slot - 1);
  }

  const std::vector<std::uint32_t>& free() const { return free_; }
  const std::vector<std::uint32_t>& cached() const { return cached_; }
  std::uint64_t num_uses(std::uint32_t slot) const { return uses_[slot]; }
  bool is_proven(std::uint32_t slot) const { return proven_.contains(slot); }
  // Returns whether so many slots can be taken without the slot `kept`.
  bool HasRoom(std::size_t slots, std::uint32_t kept) const {
    const auto is_kept = static_cast<std::size_t>(std::ranges::count(cached_, kept));
    return slots + is_kept <= free_.size() + cached_.size();
  }

  std::uint32_t Take() {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    ++uses_[slot];
    proven_.erase(slot);
    return slot;
  }
  bool IsCached(std::uint32_t slot) const { return std::ranges::count(cached_, slot) > 0; }
  // Takes the slot from the cached ones. Returns whether it was one.
  bool Use(std::uint32_t slot) { return std::erase(cached_, slot) > 0; }
  void Touch(std::uint32_t slot) {
    if (Use(slot)) cached_.push_back(slot);
  }
  void Free(std::uint32_t slot) { free_.push_back(slot); }
  void Cache(std::uint32_t slot) { cached_.push_back(slot); }
  void SetProven(std::uint32_t slot) { proven_.insert(slot); }

 private:
  std::vector<std::uint32_t> free_;    // the last one is taken first
  std::vector<std::uint32_t> cached_;  // the first one is evicted first
  std::vector<std::uint64_t> uses_;    // by slot
  std::set<std::uint32_t> proven_;
};

}  // namespace quire::cache
