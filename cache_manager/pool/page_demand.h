#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire::cache {

// Layers that keep their keys and values for equally long, and as many of them as a page has room
// for: they share one lookup table.
struct CacheGroup {
  // Tokens that a query reads, its own included; 0: all before it.
  std::uint32_t window = 0;
};

// How many pages of the one pool a batch row asks for, over all layer groups.
//
// A group without window has a page for every page_size tokens. A row holds in a window group the
// pages that the window of its next token reaches, those of the tokens that are being computed, and
// always its last full page, which its next page continues.
//
// Place:      beside CacheManager, which answers with the one of its options; planning makes one of
//             the same groups before there is a cache.
// Threads:    any; a value.
class PageDemand {
 public:
  // `max_overlap_tokens`: CacheManagerOptions::max_row_overlap_tokens. REQUIRES: page_size > 0.
  PageDemand(std::uint32_t page_size, std::span<const CacheGroup> groups,
             std::uint32_t max_overlap_tokens);

  // The most pages that a row which grows to `tokens` tokens holds at a time.
  std::uint32_t PagesFor(std::uint32_t tokens) const;
  // Those that forks of a row share for good: the full pages of the groups without window.
  std::uint32_t SharedPagesFor(std::uint32_t prompt_tokens) const;
  // A page of each group for every page of tokens, with those that windows let go.
  std::uint64_t HistoryPages(std::uint32_t tokens) const;

  std::uint32_t num_groups() const { return num_full_groups_ + num_window_groups(); }
  std::uint32_t num_window_groups() const {
    return static_cast<std::uint32_t>(window_pages_.size());
  }
  bool has_windows() const { return !window_pages_.empty(); }

 private:
  std::uint32_t Columns(std::uint32_t tokens) const;

  std::uint32_t page_size_;
  std::uint32_t num_full_groups_ = 0;
  std::vector<std::uint32_t> window_pages_;  // by window group: the most held at a time
};

}  // namespace quire::cache
