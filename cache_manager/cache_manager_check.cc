#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {

absl::Status CacheManager::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(state_->pool.CheckIntegrity());
  for (const LookupTable& table : state_->tables) QUIRE_RETURN_IF_ERROR(table.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_->prefixes.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_->CheckReferences());
  for (std::uint32_t row = 0; row < state_->rows.size(); ++row) {
    for (std::size_t group = 0; group < state_->num_groups(); ++group) {
      QUIRE_RETURN_IF_ERROR(state_->CheckRow(BatchRow{row}, group));
    }
  }
  return state_->CheckStepWork();
}

absl::Status CacheManager::State::CheckReferences() const {
  std::vector<std::uint32_t> requests(pool.num_blocks());
  std::vector<std::uint32_t> transfers(pool.num_blocks());
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    for (const LookupTable& table : tables) {
      for (const std::uint32_t page : table.columns(BatchRow{row})) {
        if (page >= pool.num_blocks()) {
          return absl::InternalError(
              absl::StrCat("row ", row, " names page ", page, " of ", pool.num_blocks()));
        }
        ++requests[page];
      }
    }
  }
  for (const PageCopy& copy : pending_copies) ++transfers[copy.source.value()];
  const auto count = [&](const StepWork& work) {
    for (const PageCopy& copy : work.copies) ++transfers[copy.source.value()];
    for (const BlockId page : work.held) ++transfers[page.value()];
  };
  count(taken);
  for (const StepWork& work : in_flight) count(work);
  for (std::uint32_t page = 1; page < pool.num_blocks(); ++page) {
    const std::uint32_t counted = pool.requests(BlockId{page});
    const std::uint32_t copying = pool.transfers(BlockId{page});
    if (counted != requests[page] || copying != transfers[page]) {
      return absl::InternalError(absl::StrCat(
          "page ", page, " counts ", counted, " requests and ", copying, " transfers, but ",
          requests[page], " columns and ", transfers[page], " copies and steps in flight name it"));
    }
  }
  return absl::OkStatus();
}

// A row has no group's columns without those that the group should have beside them.
absl::Status CacheManager::State::CheckColumns(BatchRow row, std::size_t group) const {
  const LookupTable& table = tables[group];
  const std::uint32_t first = table.first_column(row);
  const std::uint32_t end = table.num_columns(row);
  const bool has_window = options.groups[group].window > 0;
  if (first > 0 && !has_window) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " begins at column ", first,
                                            " of group ", group, ", which has no window"));
  }
  if (first < tables[widest].first_column(row)) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " begins at column ", first,
                                            " of group ", group, ", before that of group ", widest,
                                            ", which reaches further"));
  }
  // Window groups grow together, and no further than the others, which grow together too.
  if (end != (has_window ? num_columns(row) : end_column(row))) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " has ", end, " columns of group ",
                                            group, ", and from ", num_columns(row), " to ",
                                            end_column(row), " of others"));
  }
  const RowState& state = rows[row.value()];
  if (state.num_published > (state.is_attached ? end : 0)) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " has published ",
                                            state.num_published, " columns of ", end, " in group ",
                                            group));
  }
  return absl::OkStatus();
}

bool CacheManager::State::IsInColumn(NodeId node, BatchRow row, std::uint32_t column) const {
  for (; column > 0 && node != kNoNode; --column) node = prefixes.parent(node);
  const NodeId above = node == kNoNode ? kNoNode : prefixes.parent(node);
  return above != kNoNode && prefixes.is_root(above, rows[row.value()].root);
}

absl::Status CacheManager::State::CheckRow(BatchRow row, std::size_t group) const {
  QUIRE_RETURN_IF_ERROR(CheckColumns(row, group));
  const LookupTable& table = tables[group];
  const std::uint32_t first = table.first_column(row);
  NodeId before = kNoNode;
  bool has_ended = false;
  for (std::uint32_t column = first; column < table.num_columns(row); ++column) {
    const NodeId node = pool.node(table.page(row, column));
    if (tables[widest].has_page(row, column) &&
        pool.node(tables[widest].page(row, column)) != node) {
      return absl::InternalError(
          absl::StrCat("row ", row.value(), " column ", column, " has pages of different nodes"));
    }
    if (node == kNoNode) {
      has_ended = true;
      continue;
    }
    const bool continues = column == first ? IsInColumn(node, row, column)
                                           : !has_ended && prefixes.parent(node) == before;
    if (!continues) {
      return absl::InternalError(absl::StrCat("row ", row.value(), " column ", column,
                                              " does not continue the prefix before it"));
    }
    if (prefixes.pages(node)[group] != table.page(row, column)) {
      return absl::InternalError(absl::StrCat("row ", row.value(), " column ", column,
                                              " has a page of another group than ", group));
    }
    before = node;
  }
  return absl::OkStatus();
}

absl::Status CacheManager::State::CheckStepWork() const {
  std::vector<BlockId> clears;
  for (const StepWork& work : in_flight) {
    clears.insert(clears.end(), work.clears.begin(), work.clears.end());
    for (const PageCopy& copy : work.copies) {
      if (pool.is_referenced(copy.target)) continue;
      return absl::InternalError(absl::StrCat("page ", copy.target.value(),
                                              " was let go while a step in flight copies into it"));
    }
  }
  clears.insert(clears.end(), taken.clears.begin(), taken.clears.end());
  const std::vector<BlockId> quarantined = pool.quarantined_pages();
  if (clears.size() != num_clears_taken || clears.size() > quarantined.size() ||
      !std::equal(clears.begin(), clears.end(), quarantined.begin())) {
    return absl::InternalError(absl::StrCat(clears.size(),
                                            " pages are being cleared that are not the first of ",
                                            quarantined.size(), " quarantined ones"));
  }
  for (const PageCopy& copy : pending_copies) {
    if (!pool.is_referenced(copy.target) || copy.num_rows == 0 || copy.num_rows > page_size) {
      return absl::InternalError(absl::StrCat("a copy of ", copy.num_rows, " rows into page ",
                                              copy.target.value(), " has no purpose"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
