// What rows make findable: the nodes of their pages.

#include <algorithm>

#include "base/check.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {

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

void CacheManager::SetProven(BatchRow row, std::uint32_t tokens) {
  QUIRE_CHECK(tokens > 0 && tokens <= reserved_tokens(row));
  RowState& state = state_->row_state(row);
  const std::uint32_t page_size = state_->page_size;
  const bool has_read_adopted = state_->num_completed() > state.adoption_step;
  const std::uint32_t end = has_read_adopted ? tokens : std::min(tokens, state.adopted_from);
  const std::uint32_t proven_columns = state.proven_tokens / page_size;
  state.proven_tokens = end;
  if (end / page_size <= proven_columns) return;  // as after most steps
  for (std::size_t group = 0; group < state_->num_groups(); ++group) {
    const LookupTable& table = state_->tables[group];
    const std::uint32_t first = std::max(
        {state_->FirstReadWhole(group, tokens - 1), table.first_column(row), proven_columns});
    for (std::uint32_t column = first; column < end / page_size; ++column) {
      state_->pool.MarkProven(table.page(row, column));
    }
  }
}

std::uint32_t CacheManager::proven_tokens(BatchRow row) const {
  return state_->row_state(row).proven_tokens;
}

bool CacheManager::State::CanPublish(BatchRow row) {
  RowState& state = row_state(row);
  if (!options.prefix_caching || !state.is_attached || !state.may_publish) return false;
  // Nodes go from the end of a path, so the last one tells whether any is gone.
  if (state.num_published > 0 && NodeBefore(row, state.num_published) == kNoNode) {
    state.is_blocked = true;
  }
  return !state.is_blocked;
}

NodeId CacheManager::State::NodeBefore(BatchRow row, std::uint32_t column) const {
  if (column == 0) return prefixes.FindRoot(rows[row.value()].root);
  const LookupTable& table = tables[widest];
  return table.has_page(row, column - 1) ? pool.node(table.page(row, column - 1)) : kNoNode;
}

NodeId CacheManager::State::NodeAt(BatchRow row, std::uint32_t column,
                                   std::span<const std::int32_t> tokens,
                                   std::span<const PageKey> keys) const {
  const LookupTable& table = tables[widest];
  if (table.has_page(row, column)) return pool.node(table.page(row, column));
  if (column >= table.first_column(row)) return kNoNode;
  return FindNode(rows[row.value()].root, column, tokens, keys);
}

NodeId CacheManager::State::ChildAt(NodeId node, std::uint32_t column,
                                    std::span<const std::int32_t> tokens,
                                    std::span<const PageKey> keys) const {
  if (column >= keys.size()) return kNoNode;
  const auto page_tokens = tokens.subspan(std::size_t{column} * page_size, page_size);
  return prefixes.FindChild(node, keys[column], page_tokens).node;
}

NodeId CacheManager::State::FindNode(const Hash128& root, std::uint32_t column,
                                     std::span<const std::int32_t> tokens,
                                     std::span<const PageKey> keys) const {
  NodeId node = prefixes.FindRoot(root);
  for (std::uint32_t at = 0; at <= column && node != kNoNode; ++at) {
    node = ChildAt(node, at, tokens, keys);
  }
  return node;
}

// Other rows that share the unpublished page adopt the twin too: else one of them could hold a
// published page without holding its prefix.
void CacheManager::State::Adopt(std::size_t group, BatchRow row, std::uint32_t column,
                                BlockId twin) {
  LookupTable& table = tables[group];
  const BlockId own = table.page(row, column);
  const auto replace = [&](BatchRow holder) {
    if (IsInFlight(holder)) Hold(own);
    if (!pool.is_proven(twin)) NoteAdoption(holder, column);
    pool.AddRequest(twin);
    table.Replace(holder, column, twin);
    DropRequest(own);
  };
  if (pool.requests(own) == 1) return replace(row);
  for (std::uint32_t other = 0; other < rows.size(); ++other) {
    const BatchRow holder{other};
    if (table.has_page(holder, column) && table.page(holder, column) == own) replace(holder);
  }
}

bool CacheManager::State::AreProven(std::span<const BlockId> pages) const {
  return std::ranges::all_of(
      pages, [&](BlockId page) { return page == kNullBlock || pool.is_proven(page); });
}

bool CacheManager::State::IsColumnProven(BatchRow row, std::uint32_t column, NodeId node) const {
  if (!tables[widest].has_page(row, column)) return AreProven(prefixes.pages(node));
  return std::ranges::all_of(tables, [&](const LookupTable& table) {
    return !table.has_page(row, column) || pool.is_proven(table.page(row, column));
  });
}

bool CacheManager::State::ReplacesProven(BatchRow row, std::uint32_t column, NodeId twin) const {
  for (std::size_t group = 0; group < num_groups(); ++group) {
    const BlockId page = prefixes.pages(twin)[group];
    if (page == kNullBlock || pool.is_proven(page)) continue;
    if (pool.is_proven(tables[group].page(row, column))) return true;
  }
  return false;
}

void CacheManager::State::NoteAdoption(BatchRow row, std::uint32_t column) {
  RowState& state = row_state(row);
  const std::uint32_t begin = column * page_size;
  const bool is_first = num_completed() > state.adoption_step;
  state.adopted_from = is_first ? begin : std::min(state.adopted_from, begin);
  state.adoption_step = step;
  state.proven_tokens = std::min(state.proven_tokens, begin);
}

void CacheManager::State::Merge(BatchRow row, std::uint32_t column, NodeId twin) {
  for (std::size_t group = 0; group < num_groups(); ++group) {
    const BlockId page = prefixes.pages(twin)[group];
    if (page != kNullBlock) {
      Adopt(group, row, column, page);
    } else {
      prefixes.AddPage(twin, group, tables[group].page(row, column));
    }
  }
  prefixes.Touch(twin);
}

std::span<const BlockId> CacheManager::State::PagesAt(BatchRow row, std::uint32_t column) {
  column_pages.clear();
  for (const LookupTable& table : tables) column_pages.push_back(table.page(row, column));
  return column_pages;
}

bool CacheManager::State::HoldsColumn(BatchRow row, std::uint32_t column) const {
  return std::ranges::all_of(tables, [&](const LookupTable& table) {
    if (!table.has_page(row, column)) return false;
    const BlockId page = table.page(row, column);
    return !pool.is_poisoned(page) && !AwaitsCopy(page);
  });
}

bool CacheManager::State::PublishColumn(BatchRow row, std::uint32_t column,
                                        std::span<const std::int32_t> page_tokens,
                                        const PageKey& key) {
  if (!HoldsColumn(row, column)) return false;
  if (pool.node(tables[widest].page(row, column)) != kNoNode) return true;  // a sharer was first
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::Child twin = prefixes.FindChild(parent, key, page_tokens);
  if (twin.collision) {
    ++collisions;
    return false;
  }
  if (twin.node != kNoNode) {
    // Else what another row has left there could fail this one, whose own page is sound.
    if (ReplacesProven(row, column, twin.node)) return false;
    Merge(row, column, twin.node);
    return true;
  }
  if (!prefixes.MakeRoom()) return false;
  prefixes.AddChild(column > 0 ? parent : prefixes.AddRoot(row_state(row).root), key, page_tokens,
                    PagesAt(row, column));
  return true;
}

void CacheManager::State::PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                                         std::span<const PageKey> keys, std::uint32_t full_pages) {
  RowState& state = row_state(row);
  while (state.num_published < full_pages && !state.is_blocked) {
    const std::uint32_t column = state.num_published;
    const auto page_tokens = tokens.subspan(std::size_t{column} * page_size, page_size);
    if (PublishColumn(row, column, page_tokens, keys[column])) {
      ++state.num_published;
    } else {
      state.is_blocked = true;
    }
  }
}

void CacheManager::State::KeepTail(BatchRow row, std::span<const std::int32_t> tokens,
                                   std::uint32_t computed_tokens) {
  const std::uint32_t column = computed_tokens / page_size;
  const std::uint32_t filled = computed_tokens % page_size;
  if (!partial_page_reuse || filled < page_size / kMinPartialShare) return;
  if (row_state(row).num_published != column) return;
  if (!HoldsColumn(row, column)) return;
  const auto pages = PagesAt(row, column);
  const bool is_private = std::ranges::all_of(
      pages, [&](BlockId page) { return pool.requests(page) == 1 && pool.node(page) == kNoNode; });
  if (!is_private) return;
  const auto held = tokens.subspan(std::size_t{column} * page_size, filled);
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::Beginning known = prefixes.FindPartialMatch(parent, held);
  if (known.rows == filled) return prefixes.Touch(known.node);
  if (!prefixes.MakeRoom()) return;
  prefixes.AddPartialChild(column > 0 ? parent : prefixes.AddRoot(row_state(row).root), held,
                           pages);
  const std::uint32_t proven = row_state(row).proven_tokens;
  if (computed_tokens > proven) return;
  for (std::size_t group = 0; group < num_groups(); ++group) {
    if (column >= FirstReadWhole(group, proven - 1)) pool.MarkProven(pages[group]);
  }
}

}  // namespace quire::cache
