// How rows let their pages go.

#include <algorithm>

#include "base/check.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {

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
  const std::uint32_t first_held = state_->tables[state_->widest].first_column(row);
  std::uint32_t first_column = first_token / state_->page_size;
  NodeId first = state_->NodeAt(row, first_column, tokens, keys);
  // Others may have proven pages since the caller was told. NodeAt would go over the whole history
  // for each column that the row has let go.
  while (first != kNoNode && state_->IsColumnProven(row, first_column, first)) {
    ++first_column;
    first = first_column < first_held ? state_->ChildAt(first, first_column, tokens, keys)
                                      : state_->NodeAt(row, first_column, tokens, keys);
  }
  // The nodes of a row are one path: all that continue the first go with it.
  if (first != kNoNode) state_->prefixes.DropSubtree(first);
  for (const LookupTable& table : state_->tables) {
    for (std::uint32_t column = std::max(first_column, table.first_column(row));
         column < table.num_columns(row); ++column) {
      state_->pool.MarkPoisoned(table.page(row, column));
    }
  }
  Free(row);
}

void CacheManager::Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                              std::span<const PageKey> keys, std::uint32_t first_token) {
  std::uint32_t column = first_token / state_->page_size;
  NodeId first = state_->FindNode(root, column, tokens, keys);
  while (first != kNoNode && state_->AreProven(state_->prefixes.pages(first))) {
    first = state_->ChildAt(first, ++column, tokens, keys);
  }
  if (first != kNoNode) state_->prefixes.DropSubtree(first);
}

void CacheManager::State::FreeRow(BatchRow row) {
  RowState& state = row_state(row);
  const bool is_in_flight = IsInFlight(row);
  // Last column first, so that the tail of a sequence is evicted before its head.
  for (std::uint32_t end = end_column(row); end > 0; --end) {
    for (LookupTable& table : tables) {
      if (!table.has_page(row, end - 1)) continue;
      const BlockId page = table.PopBack(row);
      // No step that was launched names a page that still awaits its copy.
      if ((is_in_flight || IsBeingCopied(page)) && !AwaitsCopy(page)) Hold(page);
      DropRequest(page);
    }
  }
  for (LookupTable& table : tables) {
    table.Clear(row);
    table.SetLength(row, 0);
  }
  state = RowState{};
}

// When the page was the target of a copy that the caller has not taken yet, the copy has no purpose
// any more, and the page may soon belong to another row.
void CacheManager::State::SettleAbandoned(BlockId page) {
  if (pending_copies.empty() || pool.is_referenced(page)) return;
  const auto copy =
      std::ranges::find_if(pending_copies, [&](const PageCopy& c) { return c.target == page; });
  if (copy == pending_copies.end()) return;
  const BlockId source = copy->source;
  pending_copies.erase(copy);
  DropTransfer(source);
}

void CacheManager::State::DropRequest(BlockId page) {
  const NodeId node = pool.node(page);
  const bool becomes_cached =
      node != kNoNode && pool.requests(page) == 1 && pool.transfers(page) == 0;
  pool.DropRequest(page, becomes_cached ? prefixes.EvictedBefore(page) : kNullBlock);
  SettleAbandoned(page);
}

void CacheManager::State::DropTransfer(BlockId page) {
  const NodeId node = pool.node(page);
  const bool becomes_cached =
      node != kNoNode && pool.requests(page) == 0 && pool.transfers(page) == 1;
  pool.DropTransfer(page, becomes_cached ? prefixes.EvictedBefore(page) : kNullBlock);
  SettleAbandoned(page);
}

}  // namespace quire::cache
