#include "cache_manager/pool/page_demand.h"

#include <algorithm>

#include "base/check.h"

namespace quire::cache {

PageDemand::PageDemand(std::uint32_t page_size, std::span<const CacheGroup> groups,
                       std::uint32_t max_overlap_tokens)
    : page_size_(page_size) {
  QUIRE_CHECK(page_size > 0);
  for (const CacheGroup& group : groups) {
    if (group.window == 0) {
      ++num_full_groups_;
      continue;
    }
    // After c computed tokens, the row holds its last full page and the pages of tokens c - window
    // + 1 to c + max_overlap_tokens - 1. These tokens span the most pages if the first of them is
    // the last token of a page.
    const std::uint64_t before = std::max(group.window - 1, page_size);
    const std::uint64_t pages = (before + max_overlap_tokens + page_size - 2) / page_size + 1;
    window_pages_.push_back(static_cast<std::uint32_t>(pages));
  }
}

std::uint64_t PageDemand::HistoryPages(std::uint32_t tokens) const {
  return std::uint64_t{num_groups()} * CeilDiv(tokens, page_size_);
}

std::uint32_t PageDemand::PagesFor(std::uint32_t tokens) const {
  const std::uint32_t pages = CeilDiv(tokens, page_size_);
  std::uint32_t total = num_full_groups_ * pages;
  for (const std::uint32_t window_pages : window_pages_) total += std::min(pages, window_pages);
  return total;
}

std::uint32_t PageDemand::SharedPagesFor(std::uint32_t prompt_tokens) const {
  return num_full_groups_ * (prompt_tokens / page_size_);
}

}  // namespace quire::cache
