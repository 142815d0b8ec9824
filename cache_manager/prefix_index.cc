#include "cache_manager/prefix_index.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {
namespace {

// A common prefix shorter than 1 / kMinPartialShare of a page is computed again instead of copied.
constexpr std::uint32_t kMinPartialShare = 8;

// Returns the child of `node` for `column` of the history `tokens`, or kNoNode.
NodeId ChildAt(const PrefixCache& prefixes, NodeId node, std::uint32_t column,
               std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
               std::uint32_t page_size) {
  if (column >= keys.size()) return kNoNode;
  const auto page_tokens = tokens.subspan(std::size_t{column} * page_size, page_size);
  return prefixes.FindChild(node, keys[column], page_tokens).node;
}

// Returns the node for `column` of the history `tokens`, or kNoNode.
NodeId FindNode(const PrefixCache& prefixes, const Hash128& root, std::uint32_t column,
                std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                std::uint32_t page_size) {
  NodeId node = prefixes.FindRoot(root);
  for (std::uint32_t at = 0; at <= column && node != kNoNode; ++at) {
    node = ChildAt(prefixes, node, at, tokens, keys, page_size);
  }
  return node;
}

// True if the node is in column `column` below the root node of `root`, whose children are in
// column 0.
bool IsInColumn(const PrefixCache& prefixes, NodeId node, const Hash128& root,
                std::uint32_t column) {
  for (; column > 0 && node != kNoNode; --column) node = prefixes.parent(node);
  const NodeId above = node == kNoNode ? kNoNode : prefixes.parent(node);
  return above != kNoNode && prefixes.is_root(above, root);
}

}  // namespace

PrefixIndex::PrefixIndex(const CacheManagerOptions& options, BlockPool* pool, PrefixCache* prefixes,
                         RowPages* rows, FiniteProof* proof)
    : prefix_caching_(options.prefix_caching),
      has_states_(options.num_state_slots > 0),
      partial_page_reuse_(options.partial_page_reuse),
      hash_key_(options.hash_key),
      page_hash_(options.page_hash),
      page_size_(options.geometry.page_size),
      pool_(pool),
      prefixes_(prefixes),
      rows_(rows),
      proof_(proof),
      publications_(options.max_rows),
      column_pages_(options.groups.size()) {}

PrefixIndex::Publication& PrefixIndex::at(BatchRow row) {
  QUIRE_CHECK(row.value() < publications_.size());
  return publications_[row.value()];
}

PrefixMatch PrefixIndex::Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                               const Hash128& root, std::uint32_t max_tokens, bool may_copy) const {
  PrefixMatch match;
  match.generation = prefixes_->generation();
  if (!prefix_caching_) return match;
  const std::size_t page_size = page_size_;
  const auto usable_tokens = tokens.first(std::min<std::size_t>(max_tokens, tokens.size()));
  const NodeId last = MatchPages(usable_tokens, keys, root, &match);
  const std::size_t matched = match.pages.size() / rows_->layout().num_groups() * page_size;
  match.num_tokens = static_cast<std::uint32_t>(matched);
  if (has_states_) LimitToState(usable_tokens, last, may_copy && partial_page_reuse_, &match);
  match.proven_tokens = proof_->ProvenColumns(match.pages) * page_size_;
  if (has_states_ || !may_copy || !partial_page_reuse_) return match;
  const PrefixCache::PartialMatch partial = prefixes_->FindPartialMatch(
      last, usable_tokens.subspan(matched, std::min(page_size, usable_tokens.size() - matched)));
  if (partial.num_tokens >= page_size / kMinPartialShare) {
    const auto sources = prefixes_->pages(partial.node);
    match.partial_sources.assign(sources.begin(), sources.end());
    match.partial_rows = partial.num_tokens;
    match.num_tokens += partial.num_tokens;
    match.is_partial_proven = proof_->AreProven(sources);
  }
  return match;
}

// A child whose page is not full is used only if all its tokens match, because its state is the one
// after its last token.
void PrefixIndex::LimitToState(std::span<const std::int32_t> tokens, NodeId last, bool may_copy,
                               PrefixMatch* match) const {
  const std::size_t groups = rows_->layout().num_groups();
  const std::uint32_t matched = match->num_tokens;
  std::uint32_t columns = matched / page_size_;
  for (NodeId node = last;; --columns, node = prefixes_->parent(node)) {
    const auto rest = tokens.subspan(std::size_t{columns} * page_size_);
    const PrefixCache::PartialMatch partial = prefixes_->FindWholePartial(node, rest);
    if (may_copy && partial.node != kNoNode) {
      const auto sources = prefixes_->pages(partial.node);
      match->partial_sources.assign(sources.begin(), sources.end());
      match->partial_rows = partial.num_tokens;
      match->is_partial_proven = proof_->AreProven(sources);
      match->state = prefixes_->state(partial.node);
      break;
    }
    if (columns == 0) break;
    match->state = prefixes_->state(node);
    if (match->state != kNullSlot) break;
  }
  match->pages.resize(columns * groups);
  match->num_tokens = columns * page_size_ + match->partial_rows;
  match->tokens_without_state = matched - std::min(matched, match->num_tokens);
}

NodeId PrefixIndex::MatchPages(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                               const Hash128& root, PrefixMatch* match) const {
  const CacheLayout& layout = rows_->layout();
  const std::size_t num_keys = std::min<std::size_t>(keys.size(), tokens.size() / page_size_);
  std::vector<BlockId>& pages = match->pages;
  // For each window group, the index after the last column without a page.
  std::vector<std::uint32_t> present_from(layout.num_groups());
  NodeId node = prefixes_->FindRoot(root);
  NodeId last = node;
  std::uint32_t usable = 0;
  for (std::uint32_t column = 0; column < num_keys; ++column) {
    const PrefixCache::Child child = prefixes_->FindChild(
        node, keys[column], tokens.subspan(std::size_t{column} * page_size_, page_size_));
    match->collision = child.collision;
    if (child.node == kNoNode) break;
    node = child.node;
    const std::uint32_t end = column + 1;
    bool is_usable = true;
    for (const BlockId page : prefixes_->pages(node)) pages.push_back(page);
    for (const std::size_t group : layout.window_groups()) {
      if (prefixes_->pages(node)[group] == kNullBlock) present_from[group] = end;
      is_usable =
          is_usable && present_from[group] <= layout.FirstHeldColumn(group, end * page_size_, end);
    }
    if (!is_usable) continue;
    usable = end;
    last = node;
  }
  pages.resize(usable * layout.num_groups());
  return last;
}

absl::Status PrefixIndex::CheckCurrent(const PrefixMatch& match) const {
  if (match.num_tokens == 0 || match.generation == prefixes_->generation()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("match of generation ", match.generation,
                                         " is outdated: the prefix cache is at generation ",
                                         prefixes_->generation()));
}

void PrefixIndex::CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens) {
  counts_.hit_tokens += match.num_tokens;
  counts_.queried_tokens += queried_tokens;
  counts_.tokens_without_state += match.tokens_without_state;
  counts_.collisions += match.collision;
}

void PrefixIndex::Attach(BatchRow row, const Hash128& root, std::uint32_t columns) {
  Publication& publication = at(row);
  publication.root = root;
  publication.is_attached = true;
  publication.num_published = columns;
}

void PrefixIndex::Fork(BatchRow parent, BatchRow child, std::uint32_t shared_columns) {
  at(child) = at(parent);
  at(child).num_published = std::min(at(child).num_published, shared_columns);
}

void PrefixIndex::ForgetRow(BatchRow row) {
  at(row) = Publication{};
}

void PrefixIndex::SetPublish(BatchRow row, bool enabled) {
  at(row).may_publish = enabled;
}

FlushCounts PrefixIndex::Flush() {
  FlushCounts counts;
  for (std::uint32_t id = 1; id < pool_->num_blocks(); ++id) {
    if (pool_->node(BlockId{id}) == kNoNode) continue;
    ++(pool_->is_referenced(BlockId{id}) ? counts.retained_pages : counts.freed_pages);
  }
  for (std::uint32_t id = 1; id < pool_->num_blocks(); ++id) {
    const NodeId node = pool_->node(BlockId{id});
    if (node != kNoNode) prefixes_->DropSubtree(node);
  }
  for (std::uint32_t row = 0; row < publications_.size(); ++row) {
    if (rows_->end_column(BatchRow{row}) > 0) publications_[row].is_blocked = true;
  }
  return counts;
}

bool PrefixIndex::CanPublish(BatchRow row) {
  Publication& publication = at(row);
  if (!prefix_caching_ || !publication.is_attached || !publication.may_publish) return false;
  // Nodes are removed from the end of a path, so any removal includes the node of the last column.
  if (publication.num_published > 0 && NodeBefore(row, publication.num_published) == kNoNode) {
    publication.is_blocked = true;
  }
  return !publication.is_blocked;
}

NodeId PrefixIndex::NodeBefore(BatchRow row, std::uint32_t column) const {
  if (column == 0) return prefixes_->FindRoot(publications_[row.value()].root);
  const LookupTable& table = rows_->widest_table();
  return table.has_page(row, column - 1) ? pool_->node(table.page(row, column - 1)) : kNoNode;
}

void PrefixIndex::Publish(BatchRow row, std::span<const std::int32_t> tokens,
                          std::vector<PageKey>* keys, std::uint32_t computed_tokens) {
  const Publication& publication = at(row);
  const std::size_t page_size = page_size_;
  const std::uint32_t full_pages = computed_tokens / page_size_;
  QUIRE_CHECK(computed_tokens <= tokens.size() && full_pages <= rows_->reserved_columns(row));
  if (!CanPublish(row) || publication.num_published >= full_pages) return;
  for (std::size_t index = keys->size(); index < full_pages; ++index) {
    keys->push_back(page_hash_(hash_key_, index == 0 ? publication.root : keys->back(),
                               tokens.subspan(index * page_size, page_size)));
  }
  PublishColumns(row, tokens, *keys, full_pages);
}

void PrefixIndex::PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                                 std::span<const PageKey> keys, std::uint32_t full_pages) {
  Publication& publication = at(row);
  while (publication.num_published < full_pages && !publication.is_blocked) {
    const std::uint32_t column = publication.num_published;
    const auto page_tokens = tokens.subspan(std::size_t{column} * page_size_, page_size_);
    if (PublishColumn(row, column, page_tokens, keys[column])) {
      ++publication.num_published;
    } else {
      publication.is_blocked = true;
    }
  }
}

bool PrefixIndex::PublishColumn(BatchRow row, std::uint32_t column,
                                std::span<const std::int32_t> page_tokens, const PageKey& key) {
  if (!rows_->HasValidColumn(row, column)) return false;
  // Another row may share the page and have published it.
  if (pool_->node(rows_->widest_table().page(row, column)) != kNoNode) return true;
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::Child published = prefixes_->FindChild(parent, key, page_tokens);
  if (published.collision) {
    ++counts_.collisions;
    return false;
  }
  if (published.node != kNoNode) {
    // Do not replace a proven page by an unproven page of the same tokens. If the unproven page had
    // bad values, this row would fail.
    if (proof_->WouldLoseProof(row, column, prefixes_->pages(published.node))) return false;
    Merge(row, column, published.node);
    return true;
  }
  if (!prefixes_->MakeRoom()) return false;
  rows_->ReadColumn(row, column, column_pages_);
  prefixes_->AddChild(column > 0 ? parent : prefixes_->AddRoot(at(row).root), key, page_tokens,
                      column_pages_);
  return true;
}

void PrefixIndex::Merge(BatchRow row, std::uint32_t column, NodeId node) {
  for (std::size_t group = 0; group < column_pages_.size(); ++group) {
    const LookupTable& table = rows_->tables()[group];
    const BlockId own = table.page(row, column);
    const BlockId page = prefixes_->pages(node)[group];
    if (page == kNullBlock) {
      prefixes_->AddPage(node, group, own);
      continue;
    }
    const auto replace = [&](BatchRow holder) {
      proof_->OnReplace(holder, column, page);
      rows_->Replace(group, holder, column, page);
    };
    if (pool_->row_refs(own) == 1) {
      replace(row);
      continue;
    }
    // Every row that shares the unpublished page is changed. Otherwise one of them could later hold
    // a published page without holding its prefix.
    for (std::uint32_t other = 0; other < publications_.size(); ++other) {
      const BatchRow holder{other};
      if (table.has_page(holder, column) && table.page(holder, column) == own) replace(holder);
    }
  }
  prefixes_->Touch(node);
}

NodeId PrefixIndex::PublishWithTail(BatchRow row, std::span<const std::int32_t> tokens,
                                    std::span<const PageKey> keys, std::uint32_t computed_tokens,
                                    bool keeps_tail) {
  QUIRE_CHECK(computed_tokens <= tokens.size());
  QUIRE_CHECK(computed_tokens <= rows_->reserved_columns(row) * page_size_);
  if (!CanPublish(row)) return kNoNode;
  const std::size_t full_pages = std::min<std::size_t>(computed_tokens / page_size_, keys.size());
  PublishColumns(row, tokens, keys, static_cast<std::uint32_t>(full_pages));
  if (computed_tokens % page_size_ == 0) return PublishedNode(row, computed_tokens / page_size_);
  return keeps_tail ? PublishTail(row, tokens, computed_tokens) : kNoNode;
}

NodeId PrefixIndex::PublishedNode(BatchRow row, std::uint32_t columns) const {
  const bool is_published = columns > 0 && columns <= publications_[row.value()].num_published;
  return is_published ? NodeBefore(row, columns) : kNoNode;
}

NodeId PrefixIndex::PublishTail(BatchRow row, std::span<const std::int32_t> tokens,
                                std::uint32_t computed_tokens) {
  const std::uint32_t column = computed_tokens / page_size_;
  const std::uint32_t filled = computed_tokens % page_size_;
  // With a snapshot the whole history need not be computed again, so even a short tail is
  // published.
  const std::uint32_t min_filled = has_states_ ? 1 : page_size_ / kMinPartialShare;
  if (!partial_page_reuse_ || filled < min_filled) return kNoNode;
  if (!CanPublish(row) || at(row).num_published != column) return kNoNode;
  if (!rows_->HasValidColumn(row, column)) return kNoNode;
  rows_->ReadColumn(row, column, column_pages_);
  const bool is_private = std::ranges::all_of(column_pages_, [&](BlockId page) {
    return pool_->row_refs(page) == 1 && pool_->node(page) == kNoNode;
  });
  if (!is_private) return kNoNode;
  const auto tail = tokens.subspan(std::size_t{column} * page_size_, filled);
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::PartialMatch existing = has_states_
                                                 ? prefixes_->FindWholePartial(parent, tail)
                                                 : prefixes_->FindPartialMatch(parent, tail);
  if (existing.num_tokens == filled) {
    prefixes_->Touch(existing.node);
    return has_states_ ? existing.node : kNoNode;
  }
  if (!prefixes_->MakeRoom()) return kNoNode;
  const NodeId node = prefixes_->AddPartialChild(
      column > 0 ? parent : prefixes_->AddRoot(at(row).root), tail, column_pages_);
  proof_->SetTailProven(row, computed_tokens, column_pages_);
  return node;
}

void PrefixIndex::DropTentativeStates(const Hash128& root, std::span<const std::int32_t> tokens,
                                      std::span<const PageKey> keys) {
  if (!has_states_) return;
  NodeId node = prefixes_->FindRoot(root);
  for (std::uint32_t column = 0; node != kNoNode; ++column) {
    node = ChildAt(*prefixes_, node, column, tokens, keys, page_size_);
    if (node == kNoNode) return;
    const StateSlot slot = prefixes_->state(node);
    if (slot != kNullSlot && !prefixes_->is_state_proven(node)) prefixes_->RemoveState(node);
  }
}

std::uint32_t PrefixIndex::FirstKeptColumn(BatchRow row) {
  if (!CanPublish(row)) return std::numeric_limits<std::uint32_t>::max();
  return std::max(at(row).num_published, 1u) - 1;
}

std::uint32_t PrefixIndex::Invalidate(BatchRow row, std::span<const std::int32_t> tokens,
                                      std::span<const PageKey> keys, std::uint32_t first_token) {
  const LookupTable& table = rows_->widest_table();
  const std::uint32_t first_held = table.first_column(row);
  // Nodes of released columns are found by `keys`, because the row has no pages in these columns.
  const auto node_at = [&](std::uint32_t at) {
    if (at < first_held) {
      return FindNode(*prefixes_, publications_[row.value()].root, at, tokens, keys, page_size_);
    }
    return table.has_page(row, at) ? pool_->node(table.page(row, at)) : kNoNode;
  };
  std::uint32_t column = first_token / page_size_;
  NodeId first = node_at(column);
  // Other rows may have proven more pages since the caller computed `first_token`. Released columns
  // are followed from child to child, because node_at would start at the root each time.
  while (first != kNoNode && proof_->IsColumnProven(row, column, prefixes_->pages(first))) {
    ++column;
    first = column < first_held ? ChildAt(*prefixes_, first, column, tokens, keys, page_size_)
                                : node_at(column);
  }
  // The nodes of a row are one path, so the subtree contains all later ones.
  if (first != kNoNode) prefixes_->DropSubtree(first);
  return column;
}

void PrefixIndex::Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                             std::span<const PageKey> keys, std::uint32_t first_token) {
  std::uint32_t column = first_token / page_size_;
  NodeId first = FindNode(*prefixes_, root, column, tokens, keys, page_size_);
  while (first != kNoNode && proof_->AreProven(prefixes_->pages(first))) {
    first = ChildAt(*prefixes_, first, ++column, tokens, keys, page_size_);
  }
  if (first != kNoNode) prefixes_->DropSubtree(first);
}

absl::Status PrefixIndex::CheckRow(BatchRow row, std::size_t group) const {
  const LookupTable& table = rows_->tables()[group];
  const LookupTable& widest = rows_->widest_table();
  const Publication& publication = publications_[row.value()];
  const std::uint32_t first = table.first_column(row);
  const std::uint32_t end = table.end_column(row);
  if (publication.num_published > (publication.is_attached ? end : 0)) {
    return absl::InternalError(absl::StrCat("row ", row.value(), " has ", publication.num_published,
                                            " published columns, but only ", end,
                                            " columns in group ", group));
  }
  NodeId before = kNoNode;
  bool has_ended = false;
  for (std::uint32_t column = first; column < end; ++column) {
    const NodeId node = pool_->node(table.page(row, column));
    if (widest.has_page(row, column) && pool_->node(widest.page(row, column)) != node) {
      return absl::InternalError(
          absl::StrCat("row ", row.value(), " column ", column, " has pages of different nodes"));
    }
    if (node == kNoNode) {
      has_ended = true;
      continue;
    }
    const bool continues = column == first ? IsInColumn(*prefixes_, node, publication.root, column)
                                           : !has_ended && prefixes_->parent(node) == before;
    if (!continues) {
      return absl::InternalError(absl::StrCat("row ", row.value(), " column ", column,
                                              " does not continue the prefix before it"));
    }
    if (prefixes_->pages(node)[group] != table.page(row, column)) {
      return absl::InternalError(absl::StrCat("row ", row.value(), " column ", column,
                                              " has a page of another group than ", group));
    }
    before = node;
  }
  return absl::OkStatus();
}

absl::Status PrefixIndex::CheckIntegrity() const {
  for (std::uint32_t row = 0; row < publications_.size(); ++row) {
    for (std::size_t group = 0; group < rows_->layout().num_groups(); ++group) {
      QUIRE_RETURN_IF_ERROR(CheckRow(BatchRow{row}, group));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
