#include "tests/parity/page_tables.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "cache_manager/views/kv_params.h"

namespace quire::models::parity {

absl::StatusOr<PageTables> PageTables::Create(Options options) {
  PageTables tables(std::move(options));
  const Options& o = tables.options_;
  tables.free_pages_.resize(o.num_blocks - 1);
  std::iota(tables.free_pages_.begin(), tables.free_pages_.end(), 1u);
  std::shuffle(tables.free_pages_.begin(), tables.free_pages_.end(), tables.random_);
  tables.rows_.resize(o.max_rows);
  std::iota(tables.rows_.begin(), tables.rows_.end(), 0u);
  std::shuffle(tables.rows_.begin(), tables.rows_.end(), tables.random_);
  tables.rows_.resize(o.num_rows);
  tables.held_.resize(o.num_rows * o.groups.size());
  tables.lengths_.assign(o.max_rows, 0);
  const std::uint32_t stride = (o.row_pages + 7) / 8 * 8 + cache::kMaxTilePages;
  const std::size_t entries = std::size_t{o.max_rows} * stride;
  QUIRE_ASSIGN_OR_RETURN(
      tables.table_, DeviceBuffer::Allocate(MemoryKind::kHost, static_cast<std::int64_t>(
                                                                   o.groups.size() * entries * 4)));
  for (std::size_t group = 0; group < o.groups.size(); ++group) {
    const auto* const table = static_cast<const std::uint32_t*>(tables.table_.data());
    tables.inputs_.push_back({.lookup_table = table + group * entries,
                              .cache_lengths = tables.lengths_.data(),
                              .lookup_stride = stride,
                              .max_rows = o.max_rows});
  }
  QUIRE_RETURN_IF_ERROR(o.poison(tables.free_pages_));
  return tables;
}

absl::StatusOr<std::span<const cache::KvStepInputs>> PageTables::Inputs(
    const std::vector<std::uint32_t>& cached, const std::vector<std::uint32_t>& fresh) {
  cache::KvStepInputs maxima;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    lengths_[rows_[i]] = cached[i];
    if (fresh[i] == 0) continue;
    maxima.max_seq_length = std::max(maxima.max_seq_length, fresh[i]);
    maxima.max_cache_length = std::max(maxima.max_cache_length, cached[i] + fresh[i]);
    maxima.max_history_length = std::max(maxima.max_history_length, cached[i]);
    for (std::size_t group = 0; group < options_.groups.size(); ++group) {
      QUIRE_RETURN_IF_ERROR(HoldPages(i, group, cached[i], cached[i] + fresh[i]));
    }
  }
  for (cache::KvStepInputs& inputs : inputs_) {
    inputs.max_seq_length = maxima.max_seq_length;
    inputs.max_cache_length = maxima.max_cache_length;
    inputs.max_history_length = maxima.max_history_length;
  }
  return inputs_;
}

// Considers tokens [cached, end). The first of them reads furthest back.
absl::Status PageTables::HoldPages(std::size_t row, std::size_t group, std::uint32_t cached,
                                   std::uint32_t end) {
  const std::uint32_t window = options_.groups[group].window;
  const std::uint32_t first_token = window == 0 || cached < window ? 0 : cached - window + 1;
  const std::uint32_t first = first_token / options_.page_size;
  Held& held = held_[row * options_.groups.size() + group];
  std::uint32_t* const pages = columns(row, group);
  // A row that is recomputed from the start needs its released pages again.
  const bool starts_again = first < held.first;
  std::vector<std::uint32_t> released;
  const std::uint32_t kept = starts_again ? held.end : first;
  for (; held.first < kept; ++held.first) {
    released.push_back(std::exchange(pages[held.first], 0));
  }
  if (starts_again) held = {first, first};
  for (; held.end * options_.page_size < end; ++held.end) {
    pages[held.end] = free_pages_.back();
    free_pages_.pop_back();
  }
  released_pages_ += released.size();
  for (const std::uint32_t page : released) {
    free_pages_.push_back(page);
    std::swap(free_pages_.back(), free_pages_[random_() % free_pages_.size()]);
  }
  return options_.poison(released);
}

}  // namespace quire::models::parity
