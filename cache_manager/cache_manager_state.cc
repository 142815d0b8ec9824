#include "cache_manager/cache_manager_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

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
std::uint32_t MaxEmptyNodes(const CacheManagerOptions& options, std::uint32_t max_pages) {
  std::uint32_t pages_of_row = 0;
  for (const CacheGroup& group : options.groups) {
    if (group.window == 0) return 0;
    pages_of_row += std::max((group.window - 1) / options.geometry.page_size, 1u);
  }
  if (!options.prefix_caching) return 0;
  const std::uint64_t rows =
      std::min(options.max_rows, (options.geometry.num_blocks - 1) / pages_of_row);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(rows * max_pages, 0xffffffffu));
}

}  // namespace

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
      prefixes({.page_size = page_size,
                .groups = options.groups,
                .hash_key = options.hash_key,
                .page_hash = options.page_hash,
                .max_empty_nodes = MaxEmptyNodes(options, tables.front().max_pages())},
               &pool),
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

void CacheManager::State::QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows) {
  pool.AddTransfer(source);
  pending_copies.push_back({.source = source, .target = target, .num_rows = num_rows});
}

bool CacheManager::State::AwaitsCopy(BlockId page) const {
  return std::ranges::any_of(pending_copies, [&](const PageCopy& c) { return c.target == page; });
}

bool CacheManager::State::IsBeingCopied(BlockId page) const {
  return std::ranges::any_of(in_flight, [&](const StepWork& work) {
    return std::ranges::any_of(work.copies, [&](const PageCopy& c) { return c.target == page; });
  });
}

void CacheManager::State::Hold(BlockId page) {
  pool.AddTransfer(page);
  in_flight.back().held.push_back(page);
}

void CacheManager::State::PoisonHeld(const StepWork& work) {
  for (const BlockId page : work.held) {
    const NodeId node = pool.node(page);
    if (node != kNoNode && prefixes.is_full(node)) continue;
    if (node != kNoNode) prefixes.DropSubtree(node);
    pool.MarkPoisoned(page);
  }
}

// Rows are held tail first. Their heads are released first, so that a page finds its place in the
// eviction order directly before the page that it continues, which is cached by then; the other way
// round each page would go over all those before it. Copies read ends of histories, and come last.
void CacheManager::State::Release(StepWork& work) {
  for (auto held = work.held.rbegin(); held != work.held.rend(); ++held) DropTransfer(*held);
  for (const PageCopy& copy : work.copies) DropTransfer(copy.source);
  for (const BlockId page : work.clears) pool.FreeQuarantined(page);
  num_clears_taken -= work.clears.size();
  work.copies.clear();
  work.held.clear();
  work.clears.clear();
}

NodeId CacheManager::State::MatchPages(std::span<const std::int32_t> tokens,
                                       std::span<const PageKey> keys, const Hash128& root,
                                       PrefixMatch* match) const {
  const std::size_t num_keys = std::min<std::size_t>(keys.size(), tokens.size() / page_size);
  std::vector<BlockId>& pages = match->pages;
  std::vector<std::uint32_t> present_from(num_groups());  // the column after the last gap
  NodeId node = prefixes.FindRoot(root);
  NodeId last = node;
  std::uint32_t usable = 0;
  for (std::uint32_t column = 0; column < num_keys; ++column) {
    const PrefixCache::Child child = prefixes.FindChild(
        node, keys[column], tokens.subspan(std::size_t{column} * page_size, page_size));
    match->collision = child.collision;
    if (child.node == kNoNode) break;
    node = child.node;
    const std::uint32_t end = column + 1;
    bool is_usable = true;
    for (const BlockId page : prefixes.pages(node)) pages.push_back(page);
    for (const std::size_t group : windows) {
      if (prefixes.pages(node)[group] == kNullBlock) present_from[group] = end;
      is_usable = is_usable && present_from[group] <= FirstHeld(group, end * page_size, end);
    }
    if (!is_usable) continue;
    usable = end;
    last = node;
  }
  pages.resize(usable * num_groups());
  return last;
}

std::uint32_t CacheManager::State::NumCached(const PrefixMatch& match) const {
  const auto is_cached = [&](BlockId page) { return pool.state(page) == PageState::kCached; };
  auto cached = std::ranges::count_if(match.partial_sources, is_cached);
  const auto columns = static_cast<std::uint32_t>(match.pages.size() / num_groups());
  for (std::size_t group = 0; group < num_groups(); ++group) {
    for (auto column = FirstHeld(group, match.num_tokens, columns); column < columns; ++column) {
      cached += is_cached(match.pages[column * num_groups() + group]);
    }
  }
  return static_cast<std::uint32_t>(cached);
}

void CacheManager::State::AttachPages(BatchRow row, const PrefixMatch& match) {
  const std::size_t groups = num_groups();
  const auto columns = static_cast<std::uint32_t>(match.pages.size() / groups);
  for (std::size_t group = 0; group < groups; ++group) {
    LookupTable& table = tables[group];
    const std::uint32_t first = FirstHeld(group, match.num_tokens, columns);
    for (std::uint32_t column = 0; column < first; ++column) table.Skip(row);
    for (std::uint32_t column = first; column < columns; ++column) {
      const BlockId page = match.pages[column * groups + group];
      pool.AddRequest(page);
      table.Append(row, page);
      if (group == widest) prefixes.Touch(pool.node(page));
    }
  }
}

void CacheManager::State::AttachCopies(BatchRow row, std::span<const BlockId> sources,
                                       std::uint32_t num_rows) {
  prefixes.Touch(pool.node(sources.front()));
  for (const BlockId source : sources) pool.AddTransfer(source);  // else evicted for its own copy
  fresh.resize(sources.size());
  const absl::Status taken = pool.Allocate(fresh);
  QUIRE_CHECK(taken.ok());
  for (std::size_t group = 0; group < sources.size(); ++group) {
    tables[group].Append(row, fresh[group]);
    QueueCopy(sources[group], fresh[group], num_rows);
    DropTransfer(sources[group]);
  }
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

void CacheManager::State::Schedule(const RowStep& row) {
  const std::uint32_t end = row.cache_length + row.new_tokens;
  QUIRE_CHECK(std::exchange(row_state(row.row).last_step, step) != step);
  QUIRE_CHECK(row.new_tokens > 0 && end > row.cache_length);
  for (std::size_t group = 0; group < num_groups(); ++group) {
    LookupTable& table = tables[group];
    QUIRE_CHECK(table.first_column(row.row) <= FirstRead(group, row.cache_length));
    for (std::uint32_t column = row.cache_length / page_size; column < CeilDiv(end, page_size);
         ++column) {
      const BlockId page = table.page(row.row, column);
      QUIRE_CHECK(pool.requests(page) == 1 && pool.node(page) == kNoNode);
    }
    table.SetLength(row.row, row.cache_length);
  }
  scheduled.push_back(row.row);
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

NodeId CacheManager::State::FindNode(const Hash128& root, std::uint32_t column,
                                     std::span<const std::int32_t> tokens,
                                     std::span<const PageKey> keys) const {
  if (column >= keys.size()) return kNoNode;
  NodeId node = prefixes.FindRoot(root);
  for (std::uint32_t at = 0; at <= column && node != kNoNode; ++at) {
    const auto page_tokens = tokens.subspan(std::size_t{at} * page_size, page_size);
    node = prefixes.FindChild(node, keys[at], page_tokens).node;
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
}

}  // namespace quire::cache
