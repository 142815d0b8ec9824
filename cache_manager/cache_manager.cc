#include "cache_manager/cache_manager.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {
namespace {

std::uint32_t CeilDiv(std::uint32_t value, std::uint32_t unit) {
  return static_cast<std::uint32_t>((std::uint64_t{value} + unit - 1) / unit);
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
  QUIRE_ASSIGN_OR_RETURN(
      LookupTable table,
      LookupTable::Create(options.max_rows,
                          CeilDiv(options.max_context_tokens, options.geometry.page_size)));
  return std::unique_ptr<CacheManager>(
      new CacheManager(std::make_unique<State>(options, std::move(table))));
}

CacheManager::CacheManager(std::unique_ptr<State> state) : state_(std::move(state)) {}
CacheManager::~CacheManager() = default;

PrefixMatch CacheManager::Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                                const Hash128& root, std::uint32_t max_tokens) const {
  PrefixMatch match;
  match.generation = state_->prefixes.generation();
  if (!state_->options.prefix_caching) return match;
  const std::size_t page_size = state_->page_size;
  const std::size_t limit = std::min<std::size_t>(max_tokens, tokens.size());
  const std::size_t full_pages = std::min(keys.size(), limit / page_size);
  NodeId node = state_->prefixes.FindRoot(root);
  while (match.pages.size() < full_pages) {
    const std::size_t index = match.pages.size();
    const PrefixCache::Child child =
        state_->prefixes.FindChild(node, keys[index], tokens.subspan(index * page_size, page_size));
    match.collision = child.collision;
    if (child.node == kNoNode) break;
    node = child.node;
    match.pages.push_back(state_->prefixes.page(node));
  }
  const std::size_t matched = match.pages.size() * page_size;
  match.num_tokens = static_cast<std::uint32_t>(matched);
  if (!state_->partial_page_reuse) return match;
  const PrefixCache::Beginning beginning = state_->prefixes.FindBeginning(
      node, tokens.subspan(matched, std::min(page_size, limit - matched)));
  if (beginning.rows >= page_size / kMinPartialShare) {
    match.partial_source = state_->prefixes.page(beginning.node);
    match.partial_rows = beginning.rows;
    match.num_tokens += beginning.rows;
  }
  return match;
}

absl::Status CacheManager::Attach(BatchRow row, const PrefixMatch& match, const Hash128& root) {
  BlockPool& pool = state_->pool;
  RowState& state = state_->row_state(row);
  QUIRE_CHECK(state_->num_columns(row) == 0);
  if (match.num_tokens > 0 && match.generation != state_->prefixes.generation()) {
    return absl::AbortedError(absl::StrCat("match of generation ", match.generation,
                                           " is outdated, the prefix cache is at ",
                                           state_->prefixes.generation()));
  }
  const bool has_partial = match.partial_source != kNullBlock;
  if (has_partial) {
    const auto is_cached = [&](BlockId page) { return pool.state(page) == PageState::kCached; };
    const auto taken = static_cast<std::uint32_t>(std::ranges::count_if(match.pages, is_cached)) +
                       is_cached(match.partial_source);
    if (pool.available() <= taken) {
      return absl::ResourceExhaustedError(
          absl::StrCat("needs 1 pages, ", pool.available() - taken, " available"));
    }
  }
  for (const BlockId page : match.pages) {
    pool.AddRequest(page);
    state_->table.Append(row, page);
    state_->prefixes.Touch(pool.node(page));
  }
  if (has_partial) {
    state_->prefixes.Touch(pool.node(match.partial_source));
    std::array<BlockId, 1> target;
    pool.AddTransfer(match.partial_source);  // else it might be evicted for its own copy
    const absl::Status taken = pool.Allocate(target);
    QUIRE_CHECK(taken.ok());
    state_->table.Append(row, target.front());
    state_->QueueCopy(match.partial_source, target.front(), match.partial_rows);
    state_->DropTransfer(match.partial_source);
  }
  state.root = root;
  state.is_attached = true;
  state.num_published = static_cast<std::uint32_t>(match.pages.size());
  return absl::OkStatus();
}

void CacheManager::CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens) {
  state_->hit_tokens += match.num_tokens;
  state_->queried_tokens += queried_tokens;
  state_->collisions += match.collision;
}

absl::Status CacheManager::Reserve(BatchRow row, std::uint32_t total_tokens) {
  const std::uint32_t columns = CeilDiv(total_tokens, state_->page_size);
  QUIRE_CHECK(columns <= state_->table.max_pages());
  const std::uint32_t held = state_->num_columns(row);
  if (columns <= held) return absl::OkStatus();
  state_->fresh.resize(columns - held);
  QUIRE_RETURN_IF_ERROR(state_->pool.Allocate(std::span(state_->fresh)));
  for (const BlockId page : state_->fresh) state_->table.Append(row, page);
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

absl::Status CacheManager::Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens) {
  const std::uint32_t shared = computed_tokens / state_->page_size;
  const std::uint32_t rest = computed_tokens % state_->page_size;
  QUIRE_CHECK(parent != child && state_->num_columns(child) == 0);
  QUIRE_CHECK(CeilDiv(computed_tokens, state_->page_size) <= state_->num_columns(parent));
  std::array<BlockId, 1> tail{kNullBlock};
  if (rest > 0) QUIRE_RETURN_IF_ERROR(state_->pool.Allocate(tail));
  for (std::uint32_t column = 0; column < shared; ++column) {
    const BlockId page = state_->table.page(parent, column);
    state_->pool.AddRequest(page);
    state_->table.Append(child, page);
  }
  if (rest > 0) {
    state_->table.Append(child, tail.front());
    state_->QueueCopy(state_->table.page(parent, shared), tail.front(), rest);
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
  QUIRE_CHECK(CeilDiv(computed_tokens, state_->page_size) <= state_->num_columns(row));
  if (state_->CanPublish(row)) {
    const std::size_t full_pages =
        std::min<std::size_t>(computed_tokens / state_->page_size, keys.size());
    state_->PublishColumns(row, tokens, keys, static_cast<std::uint32_t>(full_pages));
    state_->KeepTail(row, tokens, computed_tokens);
  }
  Free(row);
}

void CacheManager::Scrub(BatchRow row, std::uint32_t first_token) {
  const std::uint32_t first_column = first_token / state_->page_size;
  for (std::uint32_t column = first_column; column < state_->num_columns(row); ++column) {
    const BlockId page = state_->table.page(row, column);
    if (state_->pool.node(page) != kNoNode) state_->prefixes.DropSubtree(state_->pool.node(page));
    state_->pool.MarkSpoiled(page);
  }
  Free(row);
}

const KvStepInputs& CacheManager::PrepareStep(std::span<const RowStep> rows) {
  State& state = *state_;
  for (const BatchRow row : state.scheduled) state.table.SetLength(row, 0);
  state.scheduled.clear();
  KvStepInputs& inputs = state.inputs;
  ++state.step;
  state.in_flight.push_back(std::exchange(state.taken, {}));
  inputs.max_seq_length = inputs.max_cache_length = inputs.max_history_length = 0;
  for (const RowStep& step : rows) {
    const std::uint32_t end = step.cache_length + step.new_tokens;
    QUIRE_CHECK(std::exchange(state.row_state(step.row).last_step, state.step) != state.step);
    QUIRE_CHECK(step.new_tokens > 0 && end > step.cache_length);
    QUIRE_CHECK(CeilDiv(end, state.page_size) <= state.num_columns(step.row));
    for (std::uint32_t column = step.cache_length / state.page_size;
         column < CeilDiv(end, state.page_size); ++column) {
      const BlockId page = state.table.page(step.row, column);
      QUIRE_CHECK(state.pool.requests(page) == 1 && state.pool.node(page) == kNoNode);
    }
    state.table.SetLength(step.row, step.cache_length);
    state.scheduled.push_back(step.row);
    inputs.max_seq_length = std::max(inputs.max_seq_length, step.new_tokens);
    inputs.max_cache_length = std::max(inputs.max_cache_length, end);
    inputs.max_history_length = std::max(inputs.max_history_length, step.cache_length);
  }
  return inputs;
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

void CacheManager::CompleteStep(bool spoil_held) {
  std::vector<StepWork>& in_flight = state_->in_flight;
  if (!in_flight.empty()) {
    StepWork work = std::move(in_flight.front());
    in_flight.erase(in_flight.begin());
    state_->Release(work, spoil_held);
  }
  // With one step at a time its work may also be taken after PrepareStep.
  if (in_flight.empty()) state_->Release(state_->taken, spoil_held);
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
    if (state_->num_columns(BatchRow{row}) > 0) state_->rows[row].is_blocked = true;
  }
  return counts;
}

std::uint32_t CacheManager::available_pages() const {
  return state_->pool.available();
}

std::uint32_t CacheManager::pages_of(BatchRow row) const {
  return state_->num_columns(row);
}

std::uint32_t CacheManager::private_pages_of(BatchRow row) const {
  return static_cast<std::uint32_t>(std::ranges::count_if(
      state_->table.columns(row),
      [&](std::uint32_t page) { return state_->pool.requests(BlockId{page}) == 1; }));
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
          .evicted_pages = pool.num_evicted(),
          .collisions = state_->collisions};
}

std::vector<PageUse> CacheManager::DescribePages() const {
  const BlockPool& pool = state_->pool;
  std::vector<PageUse> uses(pool.usable());
  for (std::uint32_t i = 0; i < uses.size(); ++i) {
    switch (pool.state(BlockId{i + 1})) {
      case PageState::kFree: uses[i].kind = PageUse::Kind::kFree; break;
      case PageState::kCached: uses[i].kind = PageUse::Kind::kCached; break;
      default: uses[i].kind = PageUse::Kind::kUsed; break;
    }
  }
  for (std::uint32_t row = 0; row < state_->rows.size(); ++row) {
    for (const std::uint32_t page : state_->table.columns(BatchRow{row})) {
      ++uses[page - 1].num_rows;
      uses[page - 1].row = BatchRow{row};
    }
  }
  return uses;
}

absl::Status CacheManager::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(state_->pool.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_->table.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_->prefixes.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_->CheckReferences());
  for (std::uint32_t row = 0; row < state_->rows.size(); ++row) {
    QUIRE_RETURN_IF_ERROR(state_->CheckRow(BatchRow{row}));
  }
  return state_->CheckStepWork();
}

}  // namespace quire::cache
