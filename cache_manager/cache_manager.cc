#include "cache_manager/cache_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {
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

PrefixMatch CacheManager::Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                                const Hash128& root, std::uint32_t max_tokens) const {
  PrefixMatch match;
  match.generation = state_->prefixes.generation();
  if (!state_->options.prefix_caching) return match;
  const std::size_t page_size = state_->page_size;
  const auto known = tokens.first(std::min<std::size_t>(max_tokens, tokens.size()));
  const NodeId last = state_->MatchPages(known, keys, root, &match);
  const std::size_t matched = match.pages.size() / state_->num_groups() * page_size;
  match.num_tokens = static_cast<std::uint32_t>(matched);
  if (!state_->partial_page_reuse) return match;
  const PrefixCache::Beginning beginning = state_->prefixes.FindPartialMatch(
      last, known.subspan(matched, std::min(page_size, known.size() - matched)));
  if (beginning.rows >= page_size / kMinPartialShare) {
    const auto sources = state_->prefixes.pages(beginning.node);
    match.partial_sources.assign(sources.begin(), sources.end());
    match.partial_rows = beginning.rows;
    match.num_tokens += beginning.rows;
  }
  return match;
}

absl::Status CacheManager::Attach(BatchRow row, const PrefixMatch& match, const Hash128& root) {
  const BlockPool& pool = state_->pool;
  RowState& state = state_->row_state(row);
  const std::size_t groups = state_->num_groups();
  QUIRE_CHECK(state_->end_column(row) == 0 && match.pages.size() % groups == 0);
  if (match.num_tokens > 0 && match.generation != state_->prefixes.generation()) {
    return absl::AbortedError(absl::StrCat("match of generation ", match.generation,
                                           " is outdated, the prefix cache is at ",
                                           state_->prefixes.generation()));
  }
  const bool has_partial = !match.partial_sources.empty();
  const std::uint32_t taken = has_partial ? state_->NumCached(match) : 0;
  if (has_partial && pool.available() < taken + groups) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", groups, " pages, ",
                     pool.available() - std::min(taken, pool.available()), " available"));
  }
  state_->AttachPages(row, match);
  if (has_partial) state_->AttachCopies(row, match.partial_sources, match.partial_rows);
  state.root = root;
  state.is_attached = true;
  state.num_published = static_cast<std::uint32_t>(match.pages.size() / groups);
  return absl::OkStatus();
}

void CacheManager::CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens) {
  state_->hit_tokens += match.num_tokens;
  state_->queried_tokens += queried_tokens;
  state_->collisions += match.collision;
}

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

void CacheManager::Publish(BatchRow row, std::span<const std::int32_t> tokens,
                           std::vector<PageKey>* keys, std::uint32_t computed_tokens) {
  RowState& state = state_->row_state(row);
  const std::size_t page_size = state_->page_size;
  const std::uint32_t full_pages = computed_tokens / state_->page_size;
  QUIRE_CHECK(computed_tokens <= tokens.size() && full_pages <= state_->num_columns(row));
  if (!state_->CanPublish(row) || state.num_published >= full_pages) return;
  for (std::size_t index = keys->size(); index < full_pages; ++index) {
    keys->push_back(state_->options.page_hash(state_->options.hash_key,
                                              index == 0 ? state.root : keys->back(),
                                              tokens.subspan(index * page_size, page_size)));
  }
  state_->PublishColumns(row, tokens, *keys, full_pages);
}

void CacheManager::SetPublish(BatchRow row, bool enabled) {
  state_->row_state(row).may_publish = enabled;
}

void CacheManager::ReleaseOutsideWindow(BatchRow row, std::uint32_t computed_tokens) {
  QUIRE_CHECK(computed_tokens <= reserved_tokens(row));
  const bool can_publish = state_->CanPublish(row);
  for (const std::size_t group : state_->windows) {
    LookupTable& table = state_->tables[group];
    const std::uint32_t first =
        can_publish
            ? state_->FirstHeld(group, computed_tokens, state_->row_state(row).num_published)
            : state_->FirstRead(group, computed_tokens);
    while (table.first_column(row) < first) state_->DropRequest(table.PopFront(row));
  }
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
  return absl::OkStatus();
}

void CacheManager::Free(BatchRow row) {
  state_->FreeRow(row);
}

void CacheManager::FreeKeepingTail(BatchRow row, std::span<const std::int32_t> tokens,
                                   std::span<const PageKey> keys, std::uint32_t computed_tokens) {
  QUIRE_CHECK(computed_tokens <= tokens.size());
  QUIRE_CHECK(computed_tokens <= reserved_tokens(row));
  if (state_->CanPublish(row)) {
    const std::size_t full_pages =
        std::min<std::size_t>(computed_tokens / state_->page_size, keys.size());
    state_->PublishColumns(row, tokens, keys, static_cast<std::uint32_t>(full_pages));
    state_->KeepTail(row, tokens, computed_tokens);
  }
  Free(row);
}

void CacheManager::Invalidate(BatchRow row, std::span<const std::int32_t> tokens,
                              std::span<const PageKey> keys, std::uint32_t first_token) {
  const std::uint32_t first_column = first_token / state_->page_size;
  // The nodes of a row are one path: all that continue the first go with it.
  const NodeId first = state_->NodeAt(row, first_column, tokens, keys);
  if (first != kNoNode) state_->prefixes.DropSubtree(first);
  for (const LookupTable& table : state_->tables) {
    for (std::uint32_t column = std::max(first_column, table.first_column(row));
         column < table.num_columns(row); ++column) {
      state_->pool.MarkPoisoned(table.page(row, column));
    }
  }
  Free(row);
}

std::span<const KvStepInputs> CacheManager::PrepareStep(std::span<const RowStep> rows) {
  State& state = *state_;
  for (const BatchRow row : state.scheduled) {
    for (LookupTable& table : state.tables) table.SetLength(row, 0);
  }
  state.scheduled.clear();
  ++state.step;
  state.in_flight.push_back(std::exchange(state.taken, {}));
  std::uint32_t max_seq_length = 0, max_cache_length = 0, max_history_length = 0;
  for (const RowStep& step : rows) {
    state.Schedule(step);
    max_seq_length = std::max(max_seq_length, step.new_tokens);
    max_cache_length = std::max(max_cache_length, step.cache_length + step.new_tokens);
    max_history_length = std::max(max_history_length, step.cache_length);
  }
  for (KvStepInputs& inputs : state.inputs) {
    inputs.max_seq_length = max_seq_length;
    inputs.max_cache_length = max_cache_length;
    inputs.max_history_length = max_history_length;
  }
  return state.inputs;
}

std::vector<PageCopy> CacheManager::TakeCopies() {
  std::vector<PageCopy> copies = state_->pending_copies;
  state_->pending_copies.clear();
  std::vector<PageCopy>& taken = state_->taken.copies;
  taken.insert(taken.end(), copies.begin(), copies.end());
  return copies;
}

std::vector<BlockId> CacheManager::TakeClears() {
  std::size_t& num_taken = state_->num_clears_taken;
  if (state_->pool.num_quarantined() == num_taken) return {};
  const std::vector<BlockId> all = state_->pool.quarantined_pages();
  std::vector<BlockId> clears(all.begin() + static_cast<std::ptrdiff_t>(num_taken), all.end());
  num_taken = all.size();
  std::vector<BlockId>& taken = state_->taken.clears;
  taken.insert(taken.end(), clears.begin(), clears.end());
  return clears;
}

void CacheManager::Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                              std::span<const PageKey> keys, std::uint32_t first_token) {
  const NodeId first = state_->FindNode(root, first_token / state_->page_size, tokens, keys);
  if (first != kNoNode) state_->prefixes.DropSubtree(first);
}

void CacheManager::CompleteStep(bool is_poisoned) {
  std::vector<StepWork>& in_flight = state_->in_flight;
  // The rows that it poisoned may have ended after later steps were launched.
  for (const StepWork& work : in_flight) {
    if (is_poisoned) state_->PoisonHeld(work);
  }
  if (!in_flight.empty()) {
    StepWork work = std::move(in_flight.front());
    in_flight.erase(in_flight.begin());
    state_->Release(work);
  }
  // With one step at a time its work may also be taken after PrepareStep.
  if (in_flight.empty()) state_->Release(state_->taken);
}

std::uint32_t CacheManager::steps_in_flight() const {
  return static_cast<std::uint32_t>(state_->in_flight.size());
}

bool CacheManager::has_step_work() const {
  return !state_->pending_copies.empty() ||
         state_->pool.num_quarantined() > state_->num_clears_taken;
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

}  // namespace quire::cache
