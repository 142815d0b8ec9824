#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache_manager/pool/page_demand.h"

namespace quire::cache {

// The layer groups (CacheGroup) of a cache, and the columns of a batch row that each group reads.
// Column c covers tokens [c * page_size, (c + 1) * page_size) of the row.
//
// Place:      below the classes that CacheManager consists of.
// Threads:    any; an immutable value.
class CacheLayout {
 public:
  // REQUIRES: page_size > 0; groups is not empty.
  CacheLayout(std::uint32_t page_size, std::vector<CacheGroup> groups);

  std::uint32_t page_size() const { return page_size_; }
  std::size_t num_groups() const { return groups_.size(); }
  bool has_window(std::size_t group) const { return groups_[group].window > 0; }
  // Returns the indices of the groups that have a window.
  std::span<const std::size_t> window_groups() const { return window_groups_; }
  // Returns the index of the group that keeps pages longest. No other group keeps a column that
  // this group has released.
  std::size_t widest_group() const { return widest_group_; }

  // Returns the first column that a query at `position` reads.
  std::uint32_t FirstReadColumn(std::size_t group, std::uint32_t position) const {
    const std::uint32_t window = groups_[group].window;
    return window == 0 || position < window ? 0 : (position - window + 1) / page_size_;
  }
  // Returns the first column that a query at `position` reads completely.
  std::uint32_t FirstFullyReadColumn(std::size_t group, std::uint32_t position) const {
    return FirstReadColumn(group, position + page_size_ - 1);
  }
  // Returns the first column that a row holds if its next query is at `position` and its first
  // `num_published` columns are published. The last published column is always held, because the
  // next page is published as its child.
  std::uint32_t FirstHeldColumn(std::size_t group, std::uint32_t position,
                                std::uint32_t num_published) const {
    return std::min(FirstReadColumn(group, position), std::max(num_published, 1u) - 1);
  }

 private:
  std::uint32_t page_size_;
  std::vector<CacheGroup> groups_;
  std::vector<std::size_t> window_groups_;
  std::size_t widest_group_;
};

}  // namespace quire::cache
