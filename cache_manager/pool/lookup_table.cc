#include "cache_manager/pool/lookup_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {

LookupTable::LookupTable(std::uint32_t max_rows, std::uint32_t max_pages)
    : max_rows_(max_rows),
      max_pages_(max_pages),
      stride_((max_pages + 7) / 8 * 8 + kPaddingColumns),
      first_column_(max_rows),
      end_column_(max_rows) {}

absl::StatusOr<LookupTable> LookupTable::Create(std::uint32_t max_rows, std::uint32_t max_pages) {
  QUIRE_CHECK(max_rows > 0 && max_pages > 0);
  LookupTable table(max_rows, max_pages);
  const std::int64_t row_bytes = std::int64_t{table.stride_} * std::int64_t{sizeof(std::uint32_t)};
  QUIRE_ASSIGN_OR_RETURN(table.pages_,
                         DeviceBuffer::Allocate(MemoryKind::kHost, max_rows * row_bytes));
  QUIRE_ASSIGN_OR_RETURN(
      table.lengths_,
      DeviceBuffer::Allocate(MemoryKind::kHost, max_rows * std::int64_t{sizeof(std::uint32_t)}));
  return table;
}

std::uint32_t* LookupTable::entry(BatchRow row, std::uint32_t column) const {
  return static_cast<std::uint32_t*>(pages_.data()) + std::size_t{row.value()} * stride_ + column;
}

std::uint32_t LookupTable::first_column(BatchRow row) const {
  QUIRE_CHECK(row.value() < max_rows_);
  return first_column_[row.value()];
}

std::uint32_t LookupTable::end_column(BatchRow row) const {
  QUIRE_CHECK(row.value() < max_rows_);
  return end_column_[row.value()];
}

bool LookupTable::has_page(BatchRow row, std::uint32_t column) const {
  return column >= first_column(row) && column < end_column(row);
}

std::span<const std::uint32_t> LookupTable::assigned_pages(BatchRow row) const {
  const std::uint32_t first = first_column(row);
  return {entry(row, first), end_column(row) - first};
}

BlockId LookupTable::page(BatchRow row, std::uint32_t column) const {
  QUIRE_CHECK(has_page(row, column));
  return BlockId{*entry(row, column)};
}

void LookupTable::Append(BatchRow row, BlockId page) {
  QUIRE_CHECK(end_column(row) < max_pages_);
  QUIRE_CHECK(page != kNullBlock);
  *entry(row, end_column_[row.value()]++) = page.value();
}

void LookupTable::Skip(BatchRow row) {
  QUIRE_CHECK(assigned_pages(row).empty() && end_column(row) < max_pages_);
  first_column_[row.value()] = ++end_column_[row.value()];
}

void LookupTable::Replace(BatchRow row, std::uint32_t column, BlockId page) {
  QUIRE_CHECK(has_page(row, column));
  QUIRE_CHECK(page != kNullBlock);
  *entry(row, column) = page.value();
}

BlockId LookupTable::PopBack(BatchRow row) {
  QUIRE_CHECK(!assigned_pages(row).empty());
  return BlockId{std::exchange(*entry(row, --end_column_[row.value()]), kNullBlock.value())};
}

BlockId LookupTable::PopFront(BatchRow row) {
  QUIRE_CHECK(!assigned_pages(row).empty());
  return BlockId{std::exchange(*entry(row, first_column_[row.value()]++), kNullBlock.value())};
}

void LookupTable::Clear(BatchRow row) {
  QUIRE_CHECK(assigned_pages(row).empty());
  first_column_[row.value()] = end_column_[row.value()] = 0;
}

void LookupTable::SetLength(BatchRow row, std::uint32_t tokens) {
  QUIRE_CHECK(row.value() < max_rows_);
  static_cast<std::uint32_t*>(lengths_.data())[row.value()] = tokens;
}

absl::Status LookupTable::CheckIntegrity() const {
  for (std::uint32_t row = 0; row < max_rows_; ++row) {
    const std::uint32_t first = first_column_[row];
    const std::uint32_t end = end_column_[row];
    if (end > max_pages_ || first > end) {
      return absl::InternalError(absl::StrCat("row ", row, " has pages in columns [", first, ", ",
                                              end, "), the table has ", max_pages_, " columns"));
    }
    if (end == 0 && lengths()[row] != 0) {
      return absl::InternalError(
          absl::StrCat("row ", row, " has no pages but length ", lengths()[row]));
    }
    for (std::uint32_t column = 0; column < stride_; ++column) {
      const std::uint32_t page = *entry(BatchRow{row}, column);
      if ((page != kNullBlock.value()) == (column >= first && column < end)) continue;
      return absl::InternalError(absl::StrCat("row ", row, " column ", column, " holds page ", page,
                                              ", but the columns with pages are [", first, ", ",
                                              end, ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
