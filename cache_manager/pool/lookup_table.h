#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/strong_id.h"

namespace quire::cache {

// Which page of a layer group holds which tokens of which batch row, and how many tokens each row
// has: the two arrays that kernels read. Column c of a row covers tokens [c * P, (c + 1) * P).
//
//   pages    uint32 [max_rows, stride]   stride = roundup(max_pages, 8) + 16
//   lengths  uint32 [max_rows]
//
// The multiple of 8 keeps rows 32-byte aligned; the 16 more columns keep a 16-wide read that starts
// at any valid column inside its row.
//
// Place:      below CacheManager. Knows page ids, never their states or bytes.
// Invariants: the assigned columns of a row follow one another and are never 0; all others are 0,
//             so a read past the end reaches the null page. Before the first one lie those of pages
//             that a window group has given back or never had. A row without columns has length 0.
//             Addresses never change. CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   must outlive every step that reads its arrays.
class LookupTable {
 public:
  // Columns after the last page that a reader may touch.
  static constexpr std::uint32_t kPaddingColumns = 16;

  // Returns RESOURCE_EXHAUSTED when the arrays do not fit into memory. REQUIRES: both at least 1.
  static absl::StatusOr<LookupTable> Create(std::uint32_t max_rows, std::uint32_t max_pages);

  std::uint32_t max_rows() const { return max_rows_; }
  std::uint32_t max_pages() const { return max_pages_; }
  std::uint32_t stride() const { return stride_; }
  const std::uint32_t* pages() const { return static_cast<const std::uint32_t*>(pages_.data()); }
  const std::uint32_t* lengths() const {
    return static_cast<const std::uint32_t*>(lengths_.data());
  }

  // All of these REQUIRE: row.value() < max_rows.
  // The assigned columns are [first_column(row), num_columns(row)).
  std::uint32_t first_column(BatchRow row) const;
  std::uint32_t num_columns(BatchRow row) const;
  bool has_page(BatchRow row, std::uint32_t column) const;
  // The pages of the assigned columns.
  std::span<const std::uint32_t> columns(BatchRow row) const;
  // REQUIRES: has_page(row, column).
  BlockId page(BatchRow row, std::uint32_t column) const;
  // REQUIRES: `page` is not the null page, num_columns(row) < max_pages.
  void Append(BatchRow row, BlockId page);
  // The next column stays without a page. REQUIRES: the row has none, num_columns(row) < max_pages.
  void Skip(BatchRow row);
  // REQUIRES: has_page(row, column), `page` is not the null page.
  void Replace(BatchRow row, std::uint32_t column, BlockId page);
  // Takes the last or the first page out of the row. REQUIRES: the row has one.
  BlockId PopBack(BatchRow row);
  BlockId PopFront(BatchRow row);
  // The row starts anew. REQUIRES: it has no page.
  void Clear(BatchRow row);
  void SetLength(BatchRow row, std::uint32_t tokens);

  // Proves the invariants in O(max_rows * stride).
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
  std::vector<std::uint32_t> num_columns_;   // by row
};

}  // namespace quire::cache
