#include "cache_manager/finite_proof.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::cache {

FiniteProof::FiniteProof(BlockPool* pool, const RowPages* rows, const StepWork* step_work)
    : pool_(pool), rows_(rows), step_work_(step_work), proofs_(rows->max_rows()) {}

FiniteProof::RowProof& FiniteProof::at(BatchRow row) {
  QUIRE_CHECK(row.value() < proofs_.size());
  return proofs_[row.value()];
}

void FiniteProof::Attach(BatchRow row, std::uint32_t proven_tokens) {
  at(row).proven_tokens = proven_tokens;
}

void FiniteProof::Fork(BatchRow parent, BatchRow child, std::uint32_t shared_tokens) {
  at(child) = at(parent);
  at(child).proven_tokens = std::min(at(child).proven_tokens, shared_tokens);
}

void FiniteProof::ForgetRow(BatchRow row) {
  at(row) = RowProof{};
}

void FiniteProof::SetProven(BatchRow row, std::uint32_t tokens) {
  const CacheLayout& layout = rows_->layout();
  const std::uint32_t page_size = layout.page_size();
  QUIRE_CHECK(tokens > 0 && tokens <= rows_->reserved_columns(row) * page_size);
  RowProof& proof = at(row);
  const bool has_read_adopted = step_work_->num_completed() > proof.adoption_step;
  const std::uint32_t end = has_read_adopted ? tokens : std::min(tokens, proof.adopted_from);
  const std::uint32_t proven_columns = proof.proven_tokens / page_size;
  proof.proven_tokens = end;
  if (end / page_size <= proven_columns) return;  // most steps complete no page
  for (std::size_t group = 0; group < layout.num_groups(); ++group) {
    const LookupTable& table = rows_->tables()[group];
    const std::uint32_t first = std::max(
        {layout.FirstFullyReadColumn(group, tokens - 1), table.first_column(row), proven_columns});
    for (std::uint32_t column = first; column < end / page_size; ++column) {
      pool_->SetProvenFinite(table.page(row, column));
    }
  }
}

std::uint32_t FiniteProof::proven_tokens(BatchRow row) const {
  QUIRE_CHECK(row.value() < proofs_.size());
  return proofs_[row.value()].proven_tokens;
}

void FiniteProof::SetTailProven(BatchRow row, std::uint32_t computed_tokens,
                                std::span<const BlockId> pages) {
  const CacheLayout& layout = rows_->layout();
  const std::uint32_t proven = at(row).proven_tokens;
  if (computed_tokens > proven) return;
  const std::uint32_t column = computed_tokens / layout.page_size();
  for (std::size_t group = 0; group < pages.size(); ++group) {
    if (column >= layout.FirstFullyReadColumn(group, proven - 1))
      pool_->SetProvenFinite(pages[group]);
  }
}

void FiniteProof::OnReplace(BatchRow row, std::uint32_t column, BlockId page) {
  if (pool_->is_proven_finite(page)) return;
  RowProof& proof = at(row);
  const std::uint32_t begin = column * rows_->layout().page_size();
  const bool has_read_adopted = step_work_->num_completed() > proof.adoption_step;
  proof.adopted_from = has_read_adopted ? begin : std::min(proof.adopted_from, begin);
  proof.adoption_step = step_work_->num_started();
  proof.proven_tokens = std::min(proof.proven_tokens, begin);
}

bool FiniteProof::AreProven(std::span<const BlockId> pages) const {
  return std::ranges::all_of(
      pages, [&](BlockId page) { return page == kNullBlock || pool_->is_proven_finite(page); });
}

bool FiniteProof::IsColumnProven(BatchRow row, std::uint32_t column,
                                 std::span<const BlockId> node_pages) const {
  if (!rows_->widest_table().has_page(row, column)) return AreProven(node_pages);
  return std::ranges::all_of(rows_->tables(), [&](const LookupTable& table) {
    return !table.has_page(row, column) || pool_->is_proven_finite(table.page(row, column));
  });
}

bool FiniteProof::WouldLoseProof(BatchRow row, std::uint32_t column,
                                 std::span<const BlockId> pages) const {
  for (std::size_t group = 0; group < pages.size(); ++group) {
    if (pages[group] == kNullBlock || pool_->is_proven_finite(pages[group])) continue;
    if (pool_->is_proven_finite(rows_->tables()[group].page(row, column))) return true;
  }
  return false;
}

std::uint32_t FiniteProof::ProvenColumns(std::span<const BlockId> pages) const {
  const CacheLayout& layout = rows_->layout();
  const std::size_t groups = layout.num_groups();
  const auto columns = static_cast<std::uint32_t>(pages.size() / groups);
  std::uint32_t proven = columns;
  for (std::size_t group = 0; group < groups; ++group) {
    std::uint32_t column = layout.FirstHeldColumn(group, columns * layout.page_size(), columns);
    while (column < proven && pool_->is_proven_finite(pages[column * groups + group])) ++column;
    proven = std::min(proven, column);
  }
  return proven;
}

absl::Status FiniteProof::CheckIntegrity() const {
  const CacheLayout& layout = rows_->layout();
  for (std::uint32_t row = 0; row < proofs_.size(); ++row) {
    const std::uint32_t proven = proofs_[row].proven_tokens;
    const std::uint32_t reserved = rows_->reserved_columns(BatchRow{row}) * layout.page_size();
    if (proven > reserved) {
      return absl::InternalError(
          absl::StrCat("row ", row, " has ", proven, " proven tokens, but pages for ", reserved));
    }
    for (std::size_t group = 0; group < layout.num_groups(); ++group) {
      if (layout.has_window(group)) continue;
      for (std::uint32_t column = 0; column < proven / layout.page_size(); ++column) {
        const BlockId page = rows_->tables()[group].page(BatchRow{row}, column);
        if (pool_->is_proven_finite(page)) continue;
        return absl::InternalError(absl::StrCat("row ", row, " has ", proven,
                                                " proven tokens, but page ", page.value(),
                                                " of column ", column, " is not proven finite"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
