#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire::cache {

inline std::uint32_t CeilDiv(std::uint32_t value, std::uint32_t unit) {
  return static_cast<std::uint32_t>((std::uint64_t{value} + unit - 1) / unit);
}

// A set of layers that have the same attention window and share one lookup table. A page stores the
// keys and values of all layers of one group, so a group has at most KvGeometry::num_layers layers.
struct CacheGroup {
  // Number of tokens that a query reads, including its own. 0 means that it reads all earlier
  // tokens.
  std::uint32_t window = 0;
};

// Computes how many pages of the shared pool a batch row needs, over all layer groups.
//
// A group without window has a page for every page_size tokens. In a window group a row holds the
// pages that the window of its next token reaches and the pages of the tokens being computed. It
// also holds its last full page, which its next page continues.
//
// Place:      part of CacheManager (demand()). Memory planning also creates one, before the cache
//             exists.
// Threads:    any; a value type.
class PageDemand {
 public:
  // `max_overlap_tokens`: CacheManagerOptions::max_row_overlap_tokens. REQUIRES: page_size > 0.
  PageDemand(std::uint32_t page_size, std::span<const CacheGroup> groups,
             std::uint32_t max_overlap_tokens);

  // Returns the maximum number of pages that a row holds at a time while it grows to `tokens`
  // tokens.
  std::uint32_t PagesFor(std::uint32_t tokens) const;
  // Returns the number of prompt pages that all forks of a row share as long as they run. These are
  // the full pages of the groups without window.
  std::uint32_t SharedPagesFor(std::uint32_t prompt_tokens) const;
  // Returns the number of pages that `tokens` tokens occupy in all groups, including the pages that
  // windows release.
  std::uint64_t HistoryPages(std::uint32_t tokens) const;

  std::uint32_t num_groups() const { return num_full_groups_ + num_window_groups(); }
  std::uint32_t num_window_groups() const {
    return static_cast<std::uint32_t>(window_pages_.size());
  }
  bool has_windows() const { return !window_pages_.empty(); }

 private:
  std::uint32_t page_size_;
  std::uint32_t num_full_groups_ = 0;
  std::vector<std::uint32_t> window_pages_;  // by window group: maximum pages held at a time
};

}  // namespace quire::cache
