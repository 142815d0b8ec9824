#include "cache_manager/cache_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::cache {
namespace {

// Returns the maximum number of prefix-cache nodes without pages that rows keep alive. Such nodes
// exist only if every group has a window. A row that keeps such nodes also holds the pages of its
// windows, so the pool size limits the number of these rows. Other nodes without pages are evicted
// when nodes run out.
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

absl::Status CheckStateOptions(const CacheManagerOptions& options) {
  if (options.num_state_slots == 0) return absl::OkStatus();
  // The pool needs the null slot and one slot per row. A fork of one row into all others also needs
  // two slots: the frozen slot of that row, and the snapshot that the row was attached to.
  if (options.num_state_slots < options.max_rows + 3) {
    return absl::InvalidArgumentError(absl::StrCat("num_state_slots is ", options.num_state_slots,
                                                   ", must be at least ", options.max_rows + 3,
                                                   " for max_rows ", options.max_rows));
  }
  if (options.state_interval_tokens % options.geometry.page_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("state_interval_tokens is ", options.state_interval_tokens,
                     ", must be a multiple of the page size ", options.geometry.page_size));
  }
  for (const CacheGroup& group : options.groups) {
    if (group.window == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "num_state_slots is ", options.num_state_slots, " and a group has a window of ",
        group.window, " tokens; a cache supports states or windows, not both"));
  }
  return absl::OkStatus();
}

PageUse::Kind KindOf(PageState state) {
  if (state == PageState::kFree) return PageUse::Kind::kFree;
  return state == PageState::kCached ? PageUse::Kind::kCached : PageUse::Kind::kUsed;
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
    return absl::InvalidArgumentError(
        absl::StrCat("the number of groups is ", options.groups.size(),
                     " and max_row_overlap_tokens is ", options.max_row_overlap_tokens,
                     "; at least 1 group is needed, and max_row_overlap_tokens must be at least 1 "
                     "if a group has a window"));
  }
  QUIRE_RETURN_IF_ERROR(CheckStateOptions(options));
  const std::uint32_t max_pages = CeilDiv(options.max_context_tokens, options.geometry.page_size);
  std::vector<LookupTable> tables;
  for (std::size_t group = 0; group < options.groups.size(); ++group) {
    QUIRE_ASSIGN_OR_RETURN(LookupTable table, LookupTable::Create(options.max_rows, max_pages));
    tables.push_back(std::move(table));
  }
  return std::unique_ptr<CacheManager>(new CacheManager(options, std::move(tables)));
}

CacheManager::CacheManager(const CacheManagerOptions& options, std::vector<LookupTable> tables)
    : hash_key_(options.hash_key),
      layout_(options.geometry.page_size, options.groups),
      demand_(layout_.page_size(), options.groups, options.max_row_overlap_tokens),
      pool_(options.geometry.num_blocks),
      state_pool_(options.num_state_slots),
      prefixes_(PrefixOptions(options), &pool_, &state_pool_),
      step_work_(options.max_rows, &layout_, &pool_, &prefixes_),
      rows_(&layout_, std::move(tables), &pool_, &prefixes_, &step_work_),
      states_(options, &state_pool_, &prefixes_),
      proof_(&pool_, &rows_, &step_work_),
      index_(options, &pool_, &prefixes_, &rows_, &proof_) {}

std::int64_t CacheManager::PrefixIndexBytes(const CacheManagerOptions& options) {
  return PrefixCache::BytesFor(PrefixOptions(options), options.geometry.num_blocks);
}

absl::Status CacheManager::Attach(BatchRow row, const PrefixMatch& match, const Hash128& root,
                                  std::uint32_t prompt_tokens) {
  QUIRE_RETURN_IF_ERROR(index_.CheckCurrent(match));
  QUIRE_RETURN_IF_ERROR(states_.CheckRoom(states_.SlotsForRow(row), match.state));
  QUIRE_RETURN_IF_ERROR(rows_.Attach(row, match));
  states_.Attach(row, match, prompt_tokens);
  index_.Attach(row, root, static_cast<std::uint32_t>(match.pages.size() / num_groups()));
  proof_.Attach(row, match.proven_tokens);
  return absl::OkStatus();
}

absl::Status CacheManager::Reserve(BatchRow row, std::uint32_t total_tokens,
                                   std::uint32_t step_tokens) {
  QUIRE_RETURN_IF_ERROR(states_.CheckRoom(states_.SlotsForRow(row), kNullSlot));
  QUIRE_RETURN_IF_ERROR(rows_.Reserve(row, total_tokens, step_tokens));
  states_.Reserve(row);
  return absl::OkStatus();
}

void CacheManager::Publish(BatchRow row, std::span<const std::int32_t> tokens,
                           std::vector<PageKey>* keys, std::uint32_t computed_tokens) {
  index_.Publish(row, tokens, keys, computed_tokens);
  PublishSnapshot(row);
}

void CacheManager::PublishSnapshot(BatchRow row) {
  if (!has_states()) return;
  const std::uint32_t tokens = states_.snapshot_tokens(row);
  states_.PublishSnapshot(row, index_.PublishedNode(row, tokens / page_size()),
                          /*is_proven=*/proof_.proven_tokens(row) >= tokens);
}

void CacheManager::SetProven(BatchRow row, std::uint32_t tokens) {
  proof_.SetProven(row, tokens);
  states_.SetProven(row, tokens);
}

absl::Status CacheManager::Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens) {
  QUIRE_RETURN_IF_ERROR(states_.CheckRoom(states_.SlotsForFork(parent), kNullSlot));
  QUIRE_RETURN_IF_ERROR(rows_.Fork(parent, child, computed_tokens));
  states_.Fork(parent, child, computed_tokens);
  const std::uint32_t shared_columns = computed_tokens / page_size();
  index_.Fork(parent, child, shared_columns);
  proof_.Fork(parent, child, shared_columns * page_size());
  return absl::OkStatus();
}

void CacheManager::Free(BatchRow row) {
  states_.Free(row, step_work_.IsInFlight(row));
  rows_.Free(row);
  index_.ForgetRow(row);
  proof_.ForgetRow(row);
}

void CacheManager::FreeKeepingTail(BatchRow row, std::span<const std::int32_t> tokens,
                                   std::span<const PageKey> keys, std::uint32_t computed_tokens) {
  const bool publishes_state = has_states() && states_.CanPublishState(row, computed_tokens);
  const bool is_proven = proof_.proven_tokens(row) >= computed_tokens;
  const NodeId node = index_.PublishWithTail(row, tokens, keys, computed_tokens,
                                             !has_states() || (publishes_state && is_proven));
  if (publishes_state && node != kNoNode) states_.PublishState(row, node, is_proven);
  Free(row);
}

void CacheManager::Invalidate(BatchRow row, std::span<const std::int32_t> tokens,
                              std::span<const PageKey> keys, std::uint32_t first_token) {
  rows_.Poison(row, index_.Invalidate(row, tokens, keys, first_token));
  index_.DropTentativeStates(index_.root(row), tokens, keys);
  Free(row);
}

void CacheManager::Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                              std::span<const PageKey> keys, std::uint32_t first_token) {
  index_.Invalidate(root, tokens, keys, first_token);
  index_.DropTentativeStates(root, tokens, keys);
}

void CacheManager::CompleteStep(bool is_poisoned) {
  step_work_.Complete(is_poisoned);
  states_.CompleteStep();
}

std::span<const KvStepInputs> CacheManager::PrepareStep(std::span<const RowStep> rows) {
  QUIRE_CHECK(!has_states() || step_work_.num_in_flight() == 0);
  step_work_.Start();
  states_.PrepareStep(rows, [this](BatchRow row) { return index_.CanPublish(row); });
  return rows_.FillStepInputs(rows);
}

CacheStats CacheManager::stats() const {
  const LookupCounts& lookups = index_.lookup_counts();
  return {.usable_pages = pool_.usable(),
          .free_pages = pool_.num_free(),
          .cached_pages = pool_.num_cached(),
          .used_pages = pool_.usable() - pool_.available(),
          .hit_tokens = lookups.hit_tokens,
          .queried_tokens = lookups.queried_tokens,
          .evicted_pages = pool_.num_detached(),
          .collisions = lookups.collisions,
          .tokens_without_state = lookups.tokens_without_state,
          .state_slots = state_pool_.usable(),
          .free_state_slots = state_pool_.num_free(),
          .live_state_slots = states_.num_live(),
          .snapshot_state_slots = state_pool_.num_snapshots()};
}

std::vector<PageUse> CacheManager::DescribePages() const {
  std::vector<PageUse> uses(pool_.usable());
  for (std::uint32_t i = 0; i < uses.size(); ++i)
    uses[i].kind = KindOf(pool_.state(BlockId{i + 1}));
  for (std::uint32_t row = 0; row < rows_.max_rows(); ++row) {
    for (const LookupTable& table : rows_.tables()) {
      for (const std::uint32_t page : table.assigned_pages(BatchRow{row})) {
        ++uses[page - 1].num_rows;
        uses[page - 1].row = BatchRow{row};
      }
    }
  }
  return uses;
}

absl::Status CacheManager::CheckReferences() const {
  std::vector<std::uint32_t> row_refs(pool_.num_blocks());
  std::vector<std::uint32_t> holds(pool_.num_blocks());
  QUIRE_RETURN_IF_ERROR(rows_.CountRowRefs(row_refs));
  step_work_.CountHolds(holds);
  for (std::uint32_t page = 1; page < pool_.num_blocks(); ++page) {
    const std::uint32_t counted_row_refs = pool_.row_refs(BlockId{page});
    const std::uint32_t counted_holds = pool_.holds(BlockId{page});
    if (counted_row_refs != row_refs[page] || counted_holds != holds[page]) {
      return absl::InternalError(absl::StrCat("page ", page, " counts ", counted_row_refs,
                                              " row references and ", counted_holds, " holds, but ",
                                              row_refs[page], " columns and ", holds[page],
                                              " copies and steps in flight reference it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CacheManager::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(pool_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(state_pool_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(rows_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(states_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(prefixes_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(CheckReferences());
  QUIRE_RETURN_IF_ERROR(index_.CheckIntegrity());
  QUIRE_RETURN_IF_ERROR(proof_.CheckIntegrity());
  return step_work_.CheckIntegrity();
}

}  // namespace quire::cache
