#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/strong_id.h"

namespace quire::cache {

// The page table of one layer group, and the lengths of all batch rows: the two arrays that kernels
// read. Column c of a row names the page of tokens [c * P, (c + 1) * P).
//
//   pages    uint32 [max_rows, stride]   stride = roundup(max_pages, 8) + 16
//   lengths  uint32 [max_rows]
//
// The multiple of 8 keeps rows 32-byte aligned. With the 16 additional columns, a 16-wide read that
// starts at any valid column stays inside its row.
//
// Place:      below CacheManager. Knows page ids, not their states or bytes.
// Invariants: the assigned entries of a row are contiguous and not 0. All other entries are 0, so a
//             read past the end reaches the null page. Columns before the first assigned one stand
//             for pages that a window group has released or never had. A row without columns has
//             length 0. The addresses of the arrays never change. See CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   must outlive every step that reads its arrays.
class LookupTable {
 public:
  // Kernels may read this many columns after the last page.
  static constexpr std::uint32_t kPaddingColumns = 16;

  // Returns RESOURCE_EXHAUSTED if the arrays do not fit into memory. REQUIRES: both arguments are
  // at least 1.
  static absl::StatusOr<LookupTable> Create(std::uint32_t max_rows, std::uint32_t max_pages);

  std::uint32_t max_rows() const { return max_rows_; }
  std::uint32_t max_pages() const { return max_pages_; }
  std::uint32_t stride() const { return stride_; }
  const std::uint32_t* pages() const { return static_cast<const std::uint32_t*>(pages_.data()); }
  const std::uint32_t* lengths() const {
    return static_cast<const std::uint32_t*>(lengths_.data());
  }

  // Every function below that takes a row REQUIRES: row.value() < max_rows.
  //
  // The assigned columns are [first_column(row), end_column(row)).
  std::uint32_t first_column(BatchRow row) const;
  std::uint32_t end_column(BatchRow row) const;
  bool has_page(BatchRow row, std::uint32_t column) const;
  // Returns the pages of the assigned columns.
  std::span<const std::uint32_t> assigned_pages(BatchRow row) const;
  // REQUIRES: has_page(row, column).
  BlockId page(BatchRow row, std::uint32_t column) const;
  // Assigns the next column. REQUIRES: `page` is not the null page; end_column(row) < max_pages.
  void Append(BatchRow row, BlockId page);
  // Leaves the next column without a page. REQUIRES: the row has no page; end_column(row) <
  // max_pages.
  void Skip(BatchRow row);
  // REQUIRES: has_page(row, column); `page` is not the null page.
  void Replace(BatchRow row, std::uint32_t column, BlockId page);
  // Remove and return the last or the first page of the row. REQUIRES: the row has a page.
  BlockId PopBack(BatchRow row);
  BlockId PopFront(BatchRow row);
  // Makes column 0 the next column of the row again. REQUIRES: the row has no page.
  void Clear(BatchRow row);
  void SetLength(BatchRow row, std::uint32_t tokens);

  // Checks the invariants. O(max_rows * stride).
  absl::Status CheckIntegrity() const;

 private:
  friend struct LookupTablePeer;

  LookupTable(std::uint32_t max_rows, std::uint32_t max_pages);

  std::uint32_t* entry(BatchRow row, std::uint32_t column) const;

  std::uint32_t max_rows_;
  std::uint32_t max_pages_;
  std::uint32_t stride_;
  DeviceBuffer pages_;
  DeviceBuffer lengths_;
  std::vector<std::uint32_t> first_column_;  // by row
  std::vector<std::uint32_t> end_column_;    // by row
};

}  // namespace quire::cache
