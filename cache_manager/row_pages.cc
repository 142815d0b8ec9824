#include "cache_manager/row_pages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {

RowPages::RowPages(const CacheLayout* layout, std::vector<LookupTable> tables, BlockPool* pool,
                   PrefixCache* prefixes, StepWork* step_work)
    : layout_(layout),
      pool_(pool),
      prefixes_(prefixes),
      step_work_(step_work),
      tables_(std::move(tables)) {
  QUIRE_CHECK(tables_.size() == layout->num_groups());
  new_pages_.reserve(tables_.front().max_pages() * tables_.size());
  scheduled_rows_.reserve(max_rows());
  for (const LookupTable& table : tables_) {
    inputs_.push_back({.lookup_table = table.pages(),
                       .cache_lengths = table.lengths(),
                       .lookup_stride = table.stride(),
                       .max_rows = table.max_rows()});
  }
}

absl::Status RowPages::Attach(BatchRow row, const PrefixMatch& match) {
  const std::size_t groups = tables_.size();
  QUIRE_CHECK(end_column(row) == 0 && match.pages.size() % groups == 0);
  const bool has_partial = !match.partial_sources.empty();
  const std::uint32_t cached = has_partial ? NumCached(match) : 0;
  if (has_partial && pool_->available() < cached + groups) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", groups, " pages, ",
                     pool_->available() - std::min(cached, pool_->available()), " available"));
  }
  const auto columns = static_cast<std::uint32_t>(match.pages.size() / groups);
  for (std::size_t group = 0; group < groups; ++group) {
    LookupTable& table = tables_[group];
    const std::uint32_t first = layout_->FirstHeldColumn(group, match.num_tokens, columns);
    for (std::uint32_t column = 0; column < first; ++column) table.Skip(row);
    for (std::uint32_t column = first; column < columns; ++column) {
      const BlockId page = match.pages[column * groups + group];
      pool_->AddRowRef(page);
      table.Append(row, page);
      if (group == layout_->widest_group()) prefixes_->Touch(pool_->node(page));
    }
  }
  if (has_partial) AttachCopies(row, match.partial_sources, match.partial_rows);
  return absl::OkStatus();
}

std::uint32_t RowPages::NumCached(const PrefixMatch& match) const {
  const auto is_cached = [&](BlockId page) { return pool_->state(page) == PageState::kCached; };
  auto cached = std::ranges::count_if(match.partial_sources, is_cached);
  const std::size_t groups = tables_.size();
  const auto columns = static_cast<std::uint32_t>(match.pages.size() / groups);
  for (std::size_t group = 0; group < groups; ++group) {
    auto column = layout_->FirstHeldColumn(group, match.num_tokens, columns);
    for (; column < columns; ++column) cached += is_cached(match.pages[column * groups + group]);
  }
  return static_cast<std::uint32_t>(cached);
}

void RowPages::AttachCopies(BatchRow row, std::span<const BlockId> sources,
                            std::uint32_t num_rows) {
  prefixes_->Touch(pool_->node(sources.front()));
  // The allocation below must not evict a source.
  for (const BlockId source : sources) pool_->AddHold(source);
  new_pages_.resize(sources.size());
  const absl::Status allocated = pool_->Allocate(new_pages_);
  QUIRE_CHECK(allocated.ok());
  for (std::size_t group = 0; group < sources.size(); ++group) {
    tables_[group].Append(row, new_pages_[group]);
    step_work_->QueueCopy(sources[group], new_pages_[group], num_rows);
    prefixes_->DropHold(sources[group]);
  }
}

absl::Status RowPages::Reserve(BatchRow row, std::uint32_t total_tokens,
                               std::uint32_t step_tokens) {
  QUIRE_CHECK(step_tokens <= total_tokens);
  const auto missing = [&](std::size_t group) {
    const std::uint32_t columns =
        CeilDiv(layout_->has_window(group) ? step_tokens : total_tokens, layout_->page_size());
    QUIRE_CHECK(columns <= tables_[group].max_pages());
    return columns - std::min(columns, tables_[group].end_column(row));
  };
  std::size_t total_missing = 0;
  for (std::size_t group = 0; group < tables_.size(); ++group) total_missing += missing(group);
  if (total_missing == 0) return absl::OkStatus();
  new_pages_.resize(total_missing);
  QUIRE_RETURN_IF_ERROR(pool_->Allocate(std::span(new_pages_)));
  auto next = new_pages_.begin();
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    for (std::uint32_t left = missing(group); left > 0; --left) tables_[group].Append(row, *next++);
  }
  return absl::OkStatus();
}

absl::Status RowPages::Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens) {
  const std::uint32_t shared = computed_tokens / layout_->page_size();
  const std::uint32_t rest = computed_tokens % layout_->page_size();
  const std::uint32_t columns = CeilDiv(computed_tokens, layout_->page_size());
  QUIRE_CHECK(parent != child && end_column(child) == 0);
  QUIRE_CHECK(columns <= reserved_columns(parent));
  new_pages_.resize(rest > 0 ? tables_.size() : 0);
  if (rest > 0) QUIRE_RETURN_IF_ERROR(pool_->Allocate(new_pages_));
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    LookupTable& table = tables_[group];
    QUIRE_CHECK(std::min(table.first_column(parent), columns) <=
                layout_->FirstReadColumn(group, computed_tokens));
    for (std::uint32_t column = 0; column < shared; ++column) {
      if (!table.has_page(parent, column)) {
        table.Skip(child);
        continue;
      }
      const BlockId page = table.page(parent, column);
      pool_->AddRowRef(page);
      table.Append(child, page);
    }
    if (rest == 0) continue;
    table.Append(child, new_pages_[group]);
    step_work_->QueueCopy(table.page(parent, shared), new_pages_[group], rest);
  }
  return absl::OkStatus();
}

void RowPages::ReleaseOutsideWindow(BatchRow row, std::uint32_t computed_tokens,
                                    std::uint32_t keep_from) {
  QUIRE_CHECK(computed_tokens <= reserved_columns(row) * layout_->page_size());
  for (const std::size_t group : layout_->window_groups()) {
    LookupTable& table = tables_[group];
    const std::uint32_t first =
        std::min(layout_->FirstReadColumn(group, computed_tokens), keep_from);
    while (table.first_column(row) < first) DropRowRef(table.PopFront(row));
  }
}

void RowPages::Free(BatchRow row) {
  const std::uint32_t end = end_column(row);
  const bool is_in_flight = step_work_->IsInFlight(row);
  // The last column is freed first, so that the tail of a sequence is evicted before its head.
  for (std::uint32_t column = end; column-- > 0;) {
    for (LookupTable& table : tables_) {
      if (!table.has_page(row, column)) continue;
      const BlockId page = table.PopBack(row);
      // No launched step reads or writes a page that still awaits its copy.
      if ((is_in_flight || step_work_->IsCopyTarget(page)) && !step_work_->AwaitsCopy(page)) {
        step_work_->Pin(page);
      }
      DropRowRef(page);
    }
  }
  for (LookupTable& table : tables_) {
    table.Clear(row);
    table.SetLength(row, 0);
  }
  step_work_->ForgetRow(row);
}

void RowPages::Replace(std::size_t group, BatchRow row, std::uint32_t column, BlockId page) {
  LookupTable& table = tables_[group];
  const BlockId old = table.page(row, column);
  if (step_work_->IsInFlight(row)) step_work_->Pin(old);
  pool_->AddRowRef(page);
  table.Replace(row, column, page);
  DropRowRef(old);
}

void RowPages::Poison(BatchRow row, std::uint32_t first_column) {
  for (const LookupTable& table : tables_) {
    std::uint32_t column = std::max(first_column, table.first_column(row));
    for (; column < table.end_column(row); ++column) pool_->Poison(table.page(row, column));
  }
}

void RowPages::DropRowRef(BlockId page) {
  prefixes_->DropRowRef(page);
  step_work_->CancelCopyInto(page);
}

std::span<const KvStepInputs> RowPages::FillStepInputs(std::span<const RowStep> rows) {
  for (const BatchRow row : scheduled_rows_) {
    for (LookupTable& table : tables_) table.SetLength(row, 0);
  }
  scheduled_rows_.clear();
  std::uint32_t max_seq_length = 0, max_cache_length = 0, max_history_length = 0;
  for (const RowStep& step : rows) {
    Schedule(step);
    max_seq_length = std::max(max_seq_length, step.new_tokens);
    max_cache_length = std::max(max_cache_length, step.cache_length + step.new_tokens);
    max_history_length = std::max(max_history_length, step.cache_length);
  }
  for (KvStepInputs& inputs : inputs_) {
    inputs.max_seq_length = max_seq_length;
    inputs.max_cache_length = max_cache_length;
    inputs.max_history_length = max_history_length;
  }
  return inputs_;
}

void RowPages::Schedule(const RowStep& step) {
  const std::uint32_t page_size = layout_->page_size();
  const std::uint32_t end = step.cache_length + step.new_tokens;
  step_work_->AddRow(step.row);
  QUIRE_CHECK(step.new_tokens > 0 && end > step.cache_length);
  for (std::size_t group = 0; group < tables_.size(); ++group) {
    LookupTable& table = tables_[group];
    QUIRE_CHECK(table.first_column(step.row) <= layout_->FirstReadColumn(group, step.cache_length));
    for (std::uint32_t column = step.cache_length / page_size; column < CeilDiv(end, page_size);
         ++column) {
      const BlockId page = table.page(step.row, column);
      QUIRE_CHECK(pool_->row_refs(page) == 1 && pool_->node(page) == kNoNode);
    }
    table.SetLength(step.row, step.cache_length);
  }
  scheduled_rows_.push_back(step.row);
}

std::uint32_t RowPages::reserved_columns(BatchRow row) const {
  std::uint32_t columns = tables_.front().end_column(row);
  for (const LookupTable& table : tables_) columns = std::min(columns, table.end_column(row));
  return columns;
}

std::uint32_t RowPages::end_column(BatchRow row) const {
  std::uint32_t end = 0;
  for (const LookupTable& table : tables_) end = std::max(end, table.end_column(row));
  return end;
}

std::uint32_t RowPages::num_pages(BatchRow row) const {
  std::size_t pages = 0;
  for (const LookupTable& table : tables_) pages += table.assigned_pages(row).size();
  return static_cast<std::uint32_t>(pages);
}

std::uint32_t RowPages::num_private_pages(BatchRow row) const {
  const auto is_private = [&](std::uint32_t page) { return pool_->row_refs(BlockId{page}) == 1; };
  std::ptrdiff_t pages = 0;
  for (const LookupTable& table : tables_) {
    pages += std::ranges::count_if(table.assigned_pages(row), is_private);
  }
  return static_cast<std::uint32_t>(pages);
}

bool RowPages::HasValidColumn(BatchRow row, std::uint32_t column) const {
  return std::ranges::all_of(tables_, [&](const LookupTable& table) {
    if (!table.has_page(row, column)) return false;
    const BlockId page = table.page(row, column);
    return !pool_->is_poisoned(page) && !step_work_->AwaitsCopy(page);
  });
}

void RowPages::ReadColumn(BatchRow row, std::uint32_t column, std::span<BlockId> pages) const {
  QUIRE_CHECK(pages.size() == tables_.size());
  for (std::size_t group = 0; group < pages.size(); ++group) {
    pages[group] = tables_[group].page(row, column);
  }
}

absl::Status RowPages::CountRowRefs(std::span<std::uint32_t> row_refs) const {
  for (std::uint32_t row = 0; row < max_rows(); ++row) {
    for (const LookupTable& table : tables_) {
      for (const std::uint32_t page : table.assigned_pages(BatchRow{row})) {
        if (page >= row_refs.size()) {
          return absl::InternalError(absl::StrCat("row ", row, " refers to page ", page,
                                                  ", the pool has ", row_refs.size(), " pages"));
        }
        ++row_refs[page];
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RowPages::CheckColumns(BatchRow row, std::size_t group) const {
  const LookupTable& table = tables_[group];
  const std::uint32_t first = table.first_column(row);
  const std::uint32_t end = table.end_column(row);
  const bool has_window = layout_->has_window(group);
  if (first > 0 && !has_window) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " begins at column ", first,
                                            " of group ", group, ", which has no window"));
  }
  if (first < widest_table().first_column(row)) {
    return absl::InternalError(absl::StrCat(
        "row ", row.value(), " begins at column ", first, " of group ", group,
        ", before its first column of group ", layout_->widest_group(), ", which reaches further"));
  }
  if (end != (has_window ? reserved_columns(row) : end_column(row))) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " has ", end, " columns of group ",
                                            group, ", but groups with a window have ",
                                            reserved_columns(row), " and others ",
                                            end_column(row)));
  }
  return absl::OkStatus();
}

absl::Status RowPages::CheckIntegrity() const {
  for (const LookupTable& table : tables_) QUIRE_RETURN_IF_ERROR(table.CheckIntegrity());
  for (std::uint32_t row = 0; row < max_rows(); ++row) {
    for (std::size_t group = 0; group < tables_.size(); ++group) {
      QUIRE_RETURN_IF_ERROR(CheckColumns(BatchRow{row}, group));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
