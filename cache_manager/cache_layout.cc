#include "cache_manager/cache_layout.h"

#include <utility>

#include "base/check.h"

namespace quire::cache {

CacheLayout::CacheLayout(std::uint32_t page_size, std::vector<CacheGroup> groups)
    : page_size_(page_size), groups_(std::move(groups)) {
  QUIRE_CHECK(page_size > 0 && !groups_.empty());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (has_window(group)) window_groups_.push_back(group);
  }
  // A group without a window (window 0) reaches furthest: 0 - 1 wraps around to the maximum.
  const auto reach = [](const CacheGroup& group) { return std::uint32_t{group.window - 1}; };
  const auto widest = std::ranges::max_element(groups_, {}, reach);
  widest_group_ = static_cast<std::size_t>(widest - groups_.begin());
}

}  // namespace quire::cache
