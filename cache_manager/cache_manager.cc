#include "cache_manager/cache_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {
namespace {

std::vector<std::size_t> WindowGroups(const std::vector<CacheGroup>& groups) {
  std::vector<std::size_t> windows;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (groups[group].window > 0) windows.push_back(group);
  }
  return windows;
}

std::size_t WidestGroup(const std::vector<CacheGroup>& groups) {
  // Without window nothing is out of reach: 0 becomes the greatest number.
  const auto reach = [](const CacheGroup& group) { return std::uint32_t{group.window - 1}; };
  return static_cast<std::size_t>(std::ranges::max_element(groups, {}, reach) - groups.begin());
}

// The nodes without pages that rows can keep where all groups have windows. Of the rows with such
// nodes of their own, which no other row keeps, each has pages of its own for the windows behind
// them.
std::uint32_t MaxEmptyNodes(const CacheManagerOptions& options) {
  std::uint32_t pages_of_row = 0;
  for (const CacheGroup& group : options.groups) {
    if (group.window == 0) return 0;
    pages_of_row += std::max((group.window - 1) / options.geometry.page_size, 1u);
  }
  if (!options.prefix_caching) return 0;
  const std::uint64_t rows =
      std::min(options.max_rows, (options.geometry.num_blocks - 1) / pages_of_row);
  const std::uint32_t max_pages = CeilDiv(options.max_context_tokens, options.geometry.page_size);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(rows * max_pages, 0xffffffffu));
}

PrefixCacheOptions PrefixOptions(const CacheManagerOptions& options) {
  return {.page_size = options.geometry.page_size,
          .groups = options.groups,
          .hash_key = options.hash_key,
          .page_hash = options.page_hash,
          .max_empty_nodes = MaxEmptyNodes(options)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CacheManager>> CacheManager::Create(
    const CacheManagerOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.geometry.Validate());
  if (options.max_rows == 0 || options.max_context_tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, " and max_context_tokens is ",
                     options.max_context_tokens, ", both must be at least 1"));
  }
  const auto has_window = [](const CacheGroup& group) { return group.window > 0; };
  if (options.groups.empty() ||
      (std::ranges::any_of(options.groups, has_window) && options.max_row_overlap_tokens == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "groups are ", options.groups.size(), " and max_row_overlap_tokens is ",
        options.max_row_overlap_tokens, ", both must be at least 1, the second with a window"));
  }
  const std::uint32_t max_pages = CeilDiv(options.max_context_tokens, options.geometry.page_size);
  std::vector<LookupTable> tables;
  for (std::size_t group = 0; group < options.groups.size(); ++group) {
    QUIRE_ASSIGN_OR_RETURN(LookupTable table, LookupTable::Create(options.max_rows, max_pages));
    tables.push_back(std::move(table));
  }
  return std::unique_ptr<CacheManager>(
      new CacheManager(std::make_unique<State>(options, std::move(tables))));
}

CacheManager::CacheManager(std::unique_ptr<State> state) : state_(std::move(state)) {}

CacheManager::~CacheManager() = default;

absl::Status CacheManager::Reserve(BatchRow row, std::uint32_t total_tokens,
                                   std::uint32_t step_tokens) {
  QUIRE_CHECK(step_tokens <= total_tokens);
  std::vector<LookupTable>& tables = state_->tables;
  const auto missing = [&](std::size_t group) {
    const bool has_window = state_->options.groups[group].window > 0;
    const std::uint32_t columns =
        CeilDiv(has_window ? step_tokens : total_tokens, state_->page_size);
    QUIRE_CHECK(columns <= tables[group].max_pages());
    return columns - std::min(columns, tables[group].num_columns(row));
  };
  std::size_t all_missing = 0;
  for (std::size_t group = 0; group < tables.size(); ++group) all_missing += missing(group);
  if (all_missing == 0) return absl::OkStatus();
  state_->fresh.resize(all_missing);
  QUIRE_RETURN_IF_ERROR(state_->pool.Allocate(std::span(state_->fresh)));
  auto next = state_->fresh.begin();
  for (std::size_t group = 0; group < tables.size(); ++group) {
    for (std::uint32_t left = missing(group); left > 0; --left) tables[group].Append(row, *next++);
  }
  return absl::OkStatus();
}

absl::Status CacheManager::Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens) {
  const std::uint32_t shared = computed_tokens / state_->page_size;
  const std::uint32_t rest = computed_tokens % state_->page_size;
  const std::uint32_t columns = CeilDiv(computed_tokens, state_->page_size);
  QUIRE_CHECK(parent != child && state_->end_column(child) == 0);
  QUIRE_CHECK(columns <= state_->num_columns(parent));
  std::vector<BlockId>& tails = state_->fresh;
  tails.resize(rest > 0 ? state_->num_groups() : 0);
  if (rest > 0) QUIRE_RETURN_IF_ERROR(state_->pool.Allocate(tails));
  for (std::size_t group = 0; group < state_->num_groups(); ++group) {
    LookupTable& table = state_->tables[group];
    QUIRE_CHECK(std::min(table.first_column(parent), columns) <=
                state_->FirstRead(group, computed_tokens));
    for (std::uint32_t column = 0; column < shared; ++column) {
      if (!table.has_page(parent, column)) {
        table.Skip(child);
        continue;
      }
      const BlockId page = table.page(parent, column);
      state_->pool.AddRequest(page);
      table.Append(child, page);
    }
    if (rest == 0) continue;
    table.Append(child, tails[group]);
    state_->QueueCopy(table.page(parent, shared), tails[group], rest);
  }
  RowState& state = state_->row_state(child);
  state = state_->row_state(parent);
  state.last_step = 0;
  state.num_published = std::min(state.num_published, shared);
  state.proven_tokens = std::min(state.proven_tokens, shared * state_->page_size);
  return absl::OkStatus();
}

void CacheManager::SetPartialPageReuse(bool enabled) {
  state_->partial_page_reuse = enabled;
}

FlushCounts CacheManager::Flush() {
  FlushCounts counts;
  BlockPool& pool = state_->pool;
  for (std::uint32_t id = 1; id < pool.num_blocks(); ++id) {
    if (pool.node(BlockId{id}) == kNoNode) continue;
    ++(pool.is_referenced(BlockId{id}) ? counts.retained_pages : counts.freed_pages);
  }
  for (std::uint32_t id = 1; id < pool.num_blocks(); ++id) {
    const NodeId node = pool.node(BlockId{id});
    if (node != kNoNode) state_->prefixes.DropSubtree(node);
  }
  for (std::uint32_t row = 0; row < state_->rows.size(); ++row) {
    if (state_->end_column(BatchRow{row}) > 0) state_->rows[row].is_blocked = true;
  }
  return counts;
}

std::uint32_t CacheManager::available_pages() const {
  return state_->pool.available();
}

std::uint64_t CacheManager::num_changes() const {
  return state_->pool.num_returned() + state_->prefixes.num_published();
}

std::uint32_t CacheManager::pages_of(BatchRow row) const {
  return state_->num_pages(row);
}

std::uint32_t CacheManager::private_pages_of(BatchRow row) const {
  const auto is_private = [&](std::uint32_t page) {
    return state_->pool.requests(BlockId{page}) == 1;
  };
  std::ptrdiff_t pages = 0;
  for (const LookupTable& table : state_->tables) {
    pages += std::ranges::count_if(table.columns(row), is_private);
  }
  return static_cast<std::uint32_t>(pages);
}

std::uint32_t CacheManager::reserved_tokens(BatchRow row) const {
  return state_->num_columns(row) * state_->page_size;
}

std::uint32_t CacheManager::num_groups() const {
  return static_cast<std::uint32_t>(state_->options.groups.size());
}

const PageDemand& CacheManager::demand() const {
  return state_->demand;
}

std::uint32_t CacheManager::page_size() const {
  return state_->page_size;
}

std::uint32_t CacheManager::usable_pages() const {
  return state_->pool.usable();
}

const HashKey& CacheManager::hash_key() const {
  return state_->options.hash_key;
}

CacheStats CacheManager::stats() const {
  const BlockPool& pool = state_->pool;
  return {.usable_pages = pool.usable(),
          .free_pages = pool.num_free(),
          .cached_pages = pool.num_cached(),
          .used_pages = pool.usable() - pool.available(),
          .hit_tokens = state_->hit_tokens,
          .queried_tokens = state_->queried_tokens,
          .evicted_pages = pool.num_detached(),
          .collisions = state_->collisions};
}

std::vector<PageUse> CacheManager::DescribePages() const {
  const BlockPool& pool = state_->pool;
  std::vector<PageUse> uses(pool.usable());
  for (std::uint32_t i = 0; i < uses.size(); ++i) {
    switch (pool.state(BlockId{i + 1})) {
      case PageState::kFree:
        uses[i].kind = PageUse::Kind::kFree;
        break;
      case PageState::kCached:
        uses[i].kind = PageUse::Kind::kCached;
        break;
      default:
        uses[i].kind = PageUse::Kind::kUsed;
        break;
    }
  }
  for (std::uint32_t row = 0; row < state_->rows.size(); ++row) {
    for (const LookupTable& table : state_->tables) {
      for (const std::uint32_t page : table.columns(BatchRow{row})) {
        ++uses[page - 1].num_rows;
        uses[page - 1].row = BatchRow{row};
      }
    }
  }
  return uses;
}

std::int64_t CacheManager::PrefixIndexBytes(const CacheManagerOptions& options) {
  return PrefixCache::BytesFor(PrefixOptions(options), options.geometry.num_blocks);
}

CacheManager::State::State(const CacheManagerOptions& manager_options,
                           std::vector<LookupTable> lookup_tables)
    : options(manager_options),
      page_size(options.geometry.page_size),
      demand(page_size, options.groups, options.max_row_overlap_tokens),
      partial_page_reuse(options.partial_page_reuse),
      pool(options.geometry.num_blocks),
      tables(std::move(lookup_tables)),
      windows(WindowGroups(options.groups)),
      widest(WidestGroup(options.groups)),
      prefixes(PrefixOptions(options), &pool),
      rows(options.max_rows) {
  fresh.reserve(tables.front().max_pages() * tables.size());
  column_pages.reserve(tables.size());
  scheduled.reserve(options.max_rows);
  pending_copies.reserve(options.max_rows * tables.size());
  in_flight.reserve(4);
  for (const LookupTable& table : tables) {
    inputs.push_back({.lookup_table = table.pages(),
                      .cache_lengths = table.lengths(),
                      .lookup_stride = table.stride(),
                      .max_rows = options.max_rows});
  }
}

RowState& CacheManager::State::row_state(BatchRow row) {
  QUIRE_CHECK(row.value() < rows.size());
  return rows[row.value()];
}

std::uint32_t CacheManager::State::num_columns(BatchRow row) const {
  std::uint32_t least = tables.front().num_columns(row);
  for (const LookupTable& table : tables) least = std::min(least, table.num_columns(row));
  return least;
}

std::uint32_t CacheManager::State::end_column(BatchRow row) const {
  std::uint32_t end = 0;
  for (const LookupTable& table : tables) end = std::max(end, table.num_columns(row));
  return end;
}

std::uint32_t CacheManager::State::num_pages(BatchRow row) const {
  std::size_t pages = 0;
  for (const LookupTable& table : tables) pages += table.columns(row).size();
  return static_cast<std::uint32_t>(pages);
}

std::uint32_t CacheManager::State::FirstRead(std::size_t group, std::uint32_t position) const {
  const std::uint32_t window = options.groups[group].window;
  return window == 0 || position < window ? 0 : (position - window + 1) / page_size;
}

std::uint32_t CacheManager::State::FirstHeld(std::size_t group, std::uint32_t position,
                                             std::uint32_t published) const {
  return std::min(FirstRead(group, position), std::max(published, 1u) - 1);
}

}  // namespace quire::cache
