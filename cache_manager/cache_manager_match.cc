// What is found for a history, and how a row takes it.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {

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
  match.proven_tokens = state_->ProvenColumns(match) * state_->page_size;
  if (!state_->partial_page_reuse) return match;
  const PrefixCache::Beginning beginning = state_->prefixes.FindPartialMatch(
      last, known.subspan(matched, std::min(page_size, known.size() - matched)));
  if (beginning.rows >= page_size / kMinPartialShare) {
    const auto sources = state_->prefixes.pages(beginning.node);
    match.partial_sources.assign(sources.begin(), sources.end());
    match.partial_rows = beginning.rows;
    match.num_tokens += beginning.rows;
    match.is_partial_proven = state_->AreProven(sources);
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
  state.proven_tokens = match.proven_tokens;
  return absl::OkStatus();
}

void CacheManager::CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens) {
  state_->hit_tokens += match.num_tokens;
  state_->queried_tokens += queried_tokens;
  state_->collisions += match.collision;
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

std::uint32_t CacheManager::State::ProvenColumns(const PrefixMatch& match) const {
  const auto columns = static_cast<std::uint32_t>(match.pages.size() / num_groups());
  std::uint32_t proven = columns;
  for (std::size_t group = 0; group < num_groups(); ++group) {
    std::uint32_t column = FirstHeld(group, columns * page_size, columns);
    while (column < proven && pool.is_proven(match.pages[column * num_groups() + group])) ++column;
    proven = std::min(proven, column);
  }
  return proven;
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

}  // namespace quire::cache
