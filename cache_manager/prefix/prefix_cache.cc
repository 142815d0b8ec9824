#include "cache_manager/prefix/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {
namespace {

// Returns the size of the node table: a node and a root for each page, and the nodes without pages.
std::size_t NodeTableSize(const PrefixCacheOptions& options, std::uint32_t usable_pages) {
  const std::size_t slots = std::size_t{usable_pages} * 2 + options.max_empty_nodes;
  return std::min<std::size_t>(slots, kNoNode.value());
}

// Returns the reserved size of a table. Twice the entries leave room for the tombstones of erased
// entries, so the table never grows.
std::size_t TableRoom(std::size_t max_entries) {
  return max_entries * 2;
}

// Returns the bytes of a flat_hash_map with this reserved size. The number of slots is a power of
// two, one slot in eight stays free, and each slot has one control byte. One more group of control
// bytes follows. A table of a single group can grow once because of tombstones, so at least two
// groups are counted.
template <typename Table>
std::size_t TableBytes(std::size_t room) {
  constexpr std::size_t kTwoGroups = 32;
  const std::size_t slots = std::max(std::bit_ceil(room + (room - 1) / 7 + 1), kTwoGroups);
  return slots * (sizeof(typename Table::value_type) + 1) + kTwoGroups;
}

}  // namespace

std::int64_t PrefixCache::BytesFor(const PrefixCacheOptions& options, std::uint32_t num_blocks) {
  const std::uint32_t usable = num_blocks - 1;
  const std::size_t slots = NodeTableSize(options, usable);
  const std::size_t slot_bytes = sizeof(Node) + sizeof(NodeId) +
                                 options.page_size * sizeof(std::int32_t) +
                                 options.groups.size() * sizeof(BlockId);
  return static_cast<std::int64_t>(
      slots * slot_bytes + TableBytes<decltype(index_)>(TableRoom(slots - usable)) +
      TableBytes<decltype(roots_)>(TableRoom(usable)) + options.groups.size() * sizeof(CacheGroup));
}

PrefixCache::PrefixCache(const PrefixCacheOptions& options, BlockPool* pool, StatePool* states)
    : options_(options),
      num_groups_(options.groups.size()),
      pool_(pool),
      states_(states),
      nodes_(NodeTableSize(options, pool->usable())),
      tokens_(nodes_.size() * options.page_size),
      pages_(nodes_.size() * options.groups.size()) {
  QUIRE_CHECK(options.page_size > 0 && !options.groups.empty());
  unused_slots_.reserve(nodes_.size());
  path_states_.reserve(states->num_slots());
  for (std::size_t slot = nodes_.size(); slot > 0; --slot) {
    unused_slots_.emplace_back(static_cast<std::uint32_t>(slot - 1));
  }
  index_.reserve(TableRoom(nodes_.size() - pool_->usable()));
  roots_.reserve(TableRoom(pool_->usable()));
  pool_->SetEvictionHandler([this](BlockId page) { Evict(page); });
  states_->SetEvictionHandler([this](StateSlot slot) { RemoveState(states_->node(slot)); });
}

PrefixCache::Node& PrefixCache::at(NodeId node) {
  QUIRE_CHECK(node.value() < nodes_.size() && nodes_[node.value()].kind != Kind::kUnused);
  return nodes_[node.value()];
}

const PrefixCache::Node& PrefixCache::at(NodeId node) const {
  QUIRE_CHECK(node.value() < nodes_.size() && nodes_[node.value()].kind != Kind::kUnused);
  return nodes_[node.value()];
}

NodeId PrefixCache::id(const Node* node) const {
  return NodeId{static_cast<std::uint32_t>(node - nodes_.data())};
}

std::span<const std::int32_t> PrefixCache::tokens(NodeId node) const {
  const std::size_t begin = std::size_t{node.value()} * options_.page_size;
  return std::span(tokens_).subspan(begin, at(node).num_tokens);
}

BlockId& PrefixCache::page(NodeId node, std::size_t group) {
  QUIRE_CHECK(node.value() < nodes_.size() && group < num_groups_);
  return pages_[node.value() * num_groups_ + group];
}

std::size_t PrefixCache::GroupOf(BlockId page) const {
  QUIRE_CHECK(pool_->node(page) != kNoNode);
  const auto pages = this->pages(pool_->node(page));
  return static_cast<std::size_t>(std::ranges::find(pages, page) - pages.begin());
}

bool PrefixCache::HasPages(NodeId node) const {
  return std::ranges::any_of(pages(node), [](BlockId page) { return page != kNullBlock; });
}

bool PrefixCache::HasAllPages(NodeId node) const {
  return std::ranges::none_of(pages(node), [](BlockId page) { return page == kNullBlock; });
}

NodeId PrefixCache::FindRoot(const Hash128& scope) const {
  const auto found = roots_.find(scope);
  return found == roots_.end() ? kNoNode : found->second;
}

PrefixCache::Child PrefixCache::FindChild(NodeId parent, const PageKey& key,
                                          std::span<const std::int32_t> tokens) const {
  const auto found = index_.find(key);
  if (found == index_.end()) return {};
  const Node& node = at(found->second);
  if (node.parent != parent || !std::ranges::equal(this->tokens(found->second), tokens)) {
    return {.node = kNoNode, .collision = true};
  }
  return {.node = found->second, .collision = false};
}

PrefixCache::PartialMatch PrefixCache::FindPartialMatch(
    NodeId parent, std::span<const std::int32_t> tokens) const {
  PartialMatch best;
  if (parent == kNoNode) return best;
  std::uint32_t candidates = kMaxPartialCandidates;
  for (const Node* child = at(parent).children.front(); child != nullptr && candidates > 0;
       child = Siblings::next(child), --candidates) {
    if (!HasAllPages(id(child))) break;
    const auto stored = this->tokens(id(child));
    const auto end = std::ranges::mismatch(stored, tokens).in1;
    const auto common = static_cast<std::uint32_t>(end - stored.begin());
    if (common > best.num_tokens) best = {.node = id(child), .num_tokens = common};
  }
  return best;
}

PrefixCache::PartialMatch PrefixCache::FindWholePartial(
    NodeId parent, std::span<const std::int32_t> tokens) const {
  PartialMatch best;
  if (parent == kNoNode) return best;
  std::uint32_t candidates = kMaxPartialCandidates;
  for (const Node* child = at(parent).children.front(); child != nullptr && candidates > 0;
       child = Siblings::next(child)) {
    if (child->kind != Kind::kPartial) continue;
    --candidates;
    const auto stored = this->tokens(id(child));
    if (stored.size() > tokens.size()) continue;
    if (stored.size() <= best.num_tokens ||
        !std::ranges::equal(stored, tokens.first(stored.size())))
      continue;
    best = {.node = id(child), .num_tokens = child->num_tokens};
  }
  return best;
}

void PrefixCache::SetState(NodeId node, StateSlot slot) {
  QUIRE_CHECK(at(node).state == kNullSlot && HasAllPages(node));
  states_->AttachNode(slot, node);
  at(node).state = slot;
}

void PrefixCache::RemoveState(NodeId node) {
  QUIRE_CHECK(at(node).state != kNullSlot);
  if (at(node).kind == Kind::kPartial) return DropSubtree(node);
  states_->DetachNode(std::exchange(at(node).state, kNullSlot));
  ++generation_;
}

void PrefixCache::AddStates(NodeId parent, NodeId path_child) {
  const auto add = [this](NodeId node, bool is_branch) {
    path_states_.push_back({states_->tokens(at(node).state), node, is_branch});
  };
  const auto path_tokens = tokens(path_child);
  std::size_t num_continuations = at(parent).children.size();
  const auto begin = static_cast<std::ptrdiff_t>(path_states_.size());
  std::uint32_t candidates = kMaxPartialCandidates;
  for (const Node* child = at(parent).children.front(); child != nullptr && candidates > 0;
       child = Siblings::next(child)) {
    if (child->kind != Kind::kPartial) continue;
    --candidates;
    const auto stored = tokens(id(child));
    if (id(child) == path_child || stored.size() > path_tokens.size()) continue;
    if (!std::ranges::equal(stored, path_tokens.first(stored.size()))) continue;
    add(id(child), /*is_branch=*/false);
    --num_continuations;
  }
  std::ranges::sort(path_states_.begin() + begin, path_states_.end(), std::greater(),
                    &PathState::tokens);
  if (at(parent).state != kNullSlot) add(parent, /*is_branch=*/num_continuations > 1);
}

void PrefixCache::ThinStates(NodeId node, std::size_t limit) {
  path_states_.clear();
  path_states_.push_back({.tokens = states_->tokens(at(node).state), .node = node});
  for (NodeId above = parent(node); above != kNoNode; above = parent(node)) {
    AddStates(above, node);
    node = above;
  }
  while (path_states_.size() > limit) {
    std::size_t chosen_index = FindStateToRemove(/*at_branches=*/false);
    const auto branches = std::count_if(path_states_.begin() + 2, path_states_.end(),
                                        [](const PathState& state) { return state.is_branch; });
    if (chosen_index == 0 && static_cast<std::size_t>(branches) > limit) {
      chosen_index = FindStateToRemove(/*at_branches=*/true);
    }
    if (chosen_index == 0) return;
    RemoveState(path_states_[chosen_index].node);
    path_states_.erase(path_states_.begin() + static_cast<std::ptrdiff_t>(chosen_index));
  }
}

std::size_t PrefixCache::FindStateToRemove(bool at_branches) const {
  std::size_t chosen_index = 0;
  std::uint32_t least_gap = 0;
  for (std::size_t i = 2; i < path_states_.size(); ++i) {
    const PathState& state = path_states_[i];
    const bool is_first = i + 1 == path_states_.size();
    const std::uint32_t gap =
        path_states_[i - 1].tokens - (is_first ? 0 : path_states_[i + 1].tokens);
    if (state.is_branch != at_branches || !states_->is_cached(at(state.node).state)) continue;
    if (chosen_index != 0 && gap > least_gap) continue;
    chosen_index = i;
    least_gap = gap;
  }
  return chosen_index;
}

NodeId PrefixCache::TakeSlot(Kind kind) {
  QUIRE_CHECK(!unused_slots_.empty());
  const NodeId slot = unused_slots_.back();
  unused_slots_.pop_back();
  nodes_[slot.value()].kind = kind;
  return slot;
}

bool PrefixCache::MakeRoom() {
  constexpr std::size_t kRootAndChild = 2;
  while (unused_slots_.size() < kRootAndChild) {
    // Evicting a page of any other node would free no node slot.
    const BlockId page =
        pool_->FindCached([this](BlockId cached) { return IsColdLeaf(pool_->node(cached)); });
    if (page == kNullBlock) return false;
    pool_->Evict(page);
  }
  return true;
}

bool PrefixCache::IsColdLeaf(NodeId node) const {
  return at(node).children.empty() && std::ranges::none_of(pages(node), [this](BlockId page) {
           return page != kNullBlock && pool_->is_referenced(page);
         });
}

NodeId PrefixCache::AddRoot(const Hash128& scope) {
  const NodeId found = FindRoot(scope);
  if (found != kNoNode) return found;
  const NodeId node = TakeSlot(Kind::kRoot);
  at(node).key = scope;
  roots_.emplace(scope, node);
  return node;
}

NodeId PrefixCache::Link(Kind kind, NodeId parent, std::span<const std::int32_t> tokens,
                         std::span<const BlockId> pages) {
  Node& above = at(parent);
  QUIRE_CHECK(above.kind != Kind::kPartial && pages.size() == num_groups_);
  const NodeId slot = TakeSlot(kind);
  for (std::size_t group = 0; group < pages.size(); ++group) {
    pool_->AttachNode(pages[group], slot);
    page(slot, group) = pages[group];
  }
  Node& node = at(slot);
  node.parent = parent;
  node.parent_generation = above.generation;
  node.num_tokens = static_cast<std::uint32_t>(tokens.size());
  std::ranges::copy(tokens, tokens_.begin() + std::ptrdiff_t{slot.value()} * options_.page_size);
  above.children.push_front(&node);
  ++num_nodes_;
  ++num_published_;
  return slot;
}

NodeId PrefixCache::AddChild(NodeId parent, const PageKey& key,
                             std::span<const std::int32_t> tokens, std::span<const BlockId> pages) {
  QUIRE_CHECK(tokens.size() == options_.page_size);
  const NodeId node = Link(Kind::kFull, parent, tokens, pages);
  at(node).key = key;
  const bool is_new = index_.emplace(key, node).second;
  QUIRE_CHECK(is_new);
  return node;
}

NodeId PrefixCache::AddPartialChild(NodeId parent, std::span<const std::int32_t> tokens,
                                    std::span<const BlockId> pages) {
  QUIRE_CHECK(!tokens.empty() && tokens.size() < options_.page_size);
  return Link(Kind::kPartial, parent, tokens, pages);
}

void PrefixCache::AddPage(NodeId node, std::size_t group, BlockId page) {
  QUIRE_CHECK(at(node).kind == Kind::kFull && this->page(node, group) == kNullBlock);
  pool_->AttachNode(page, node);
  this->page(node, group) = page;
  ++num_published_;
  Touch(node);
}

void PrefixCache::Touch(NodeId node) {
  Node& touched = at(node);
  QUIRE_CHECK(touched.parent != kNoNode);
  if (!HasAllPages(node)) return;
  auto& siblings = at(touched.parent).children;
  siblings.erase(&touched);
  siblings.push_front(&touched);
}

void PrefixCache::RemoveLeaf(NodeId leaf) {
  Node& node = at(leaf);
  QUIRE_CHECK(node.children.empty());
  if (node.kind == Kind::kRoot) {
    roots_.erase(node.key);
  } else {
    if (node.kind == Kind::kFull) index_.erase(node.key);
    at(node.parent).children.erase(&node);
    for (std::size_t group = 0; group < num_groups_; ++group) {
      const BlockId page = std::exchange(this->page(leaf, group), kNullBlock);
      if (page != kNullBlock) pool_->DetachNode(page);
    }
    if (node.state != kNullSlot) states_->DetachNode(std::exchange(node.state, kNullSlot));
    --num_nodes_;
    ++generation_;
  }
  node.key = {};
  node.parent = kNoNode;
  node.num_tokens = 0;
  node.kind = Kind::kUnused;
  ++node.generation;
  unused_slots_.push_back(leaf);
}

void PrefixCache::Prune(NodeId node) {
  while (node != kNoNode && at(node).children.empty() && !HasPages(node)) {
    const NodeId above = at(node).parent;
    RemoveLeaf(node);
    node = above;
  }
}

void PrefixCache::Evict(BlockId page) {
  const NodeId node = pool_->node(page);
  const std::size_t group = GroupOf(page);
  if (at(node).kind == Kind::kPartial || options_.groups[group].window == 0) {
    return DropSubtree(node);
  }
  this->page(node, group) = kNullBlock;
  pool_->DetachNode(page);
  ++generation_;
  auto& siblings = at(at(node).parent).children;
  siblings.erase(&at(node));
  siblings.push_back(&at(node));
  Prune(node);
}

void PrefixCache::DropSubtree(NodeId top) {
  const NodeId above = at(top).parent;
  NodeId node = top;
  while (true) {
    while (!at(node).children.empty()) node = id(at(node).children.front());
    const NodeId parent = at(node).parent;
    RemoveLeaf(node);
    if (node == top) break;
    node = parent;
  }
  Prune(above);
}

void PrefixCache::DropRowRef(BlockId page) {
  const bool becomes_cached =
      pool_->node(page) != kNoNode && pool_->row_refs(page) == 1 && pool_->holds(page) == 0;
  pool_->DropRowRef(page, becomes_cached ? EvictionSuccessorOf(page) : kNullBlock);
}

void PrefixCache::DropHold(BlockId page) {
  const bool becomes_cached =
      pool_->node(page) != kNoNode && pool_->row_refs(page) == 0 && pool_->holds(page) == 1;
  pool_->DropHold(page, becomes_cached ? EvictionSuccessorOf(page) : kNullBlock);
}

BlockId PrefixCache::EvictionSuccessorOf(BlockId page) const {
  const std::size_t group = GroupOf(page);
  if (options_.groups[group].window > 0) return kNullBlock;
  // Every cached descendant precedes every cached ancestor in eviction order, so the place directly
  // before the nearest cached ancestor follows all descendants. The ancestors of a page that a row
  // references are referenced by that row too, so the search stops at the first such page.
  for (NodeId node = parent(pool_->node(page)); node != kNoNode; node = parent(node)) {
    ++num_visited_;
    const BlockId above = pages(node)[group];
    if (above == kNullBlock || pool_->row_refs(above) > 0) break;
    if (pool_->state(above) == PageState::kCached) return above;
  }
  return kNullBlock;
}

absl::Status PrefixCache::CheckPages(const Node& node) const {
  const std::uint32_t name = id(&node).value();
  const auto pages = this->pages(id(&node));
  for (std::size_t group = 0; group < pages.size(); ++group) {
    const BlockId page = pages[group];
    const bool may_lack = node.kind == Kind::kFull && options_.groups[group].window > 0;
    if (page == kNullBlock && may_lack) continue;
    if (page == kNullBlock || pool_->node(page) != id(&node)) {
      return absl::InternalError(absl::StrCat("node ", name, " refers to page ", page.value(),
                                              ", which does not refer to the node"));
    }
  }
  if (!HasPages(id(&node)) && node.children.empty()) {
    return absl::InternalError(absl::StrCat("node ", name, " has neither page nor child"));
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckState(const Node& node) const {
  const std::uint32_t name = id(&node).value();
  if (node.state == kNullSlot) {
    if (node.kind == Kind::kFull || states_->usable() == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("partial node ", name, " has no state"));
  }
  if (node.state.value() >= states_->num_slots() || states_->node(node.state) != id(&node)) {
    return absl::InternalError(absl::StrCat("node ", name, " refers to slot ", node.state.value(),
                                            ", which does not refer to the node"));
  }
  std::uint32_t tokens = 0;
  for (const Node* at = &node; at->kind != Kind::kRoot; at = &nodes_[at->parent.value()]) {
    tokens += at->num_tokens;
  }
  if (states_->tokens(node.state) != tokens) {
    return absl::InternalError(absl::StrCat("node ", name, " ends after ", tokens,
                                            " tokens, but its state after ",
                                            states_->tokens(node.state)));
  }
  if (!HasAllPages(id(&node))) {
    return absl::InternalError(absl::StrCat("node ", name, " has a state but lacks a page"));
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckNode(const Node& node) const {
  const std::uint32_t name = id(&node).value();
  if (node.kind == Kind::kRoot) {
    if (node.children.empty() || node.parent != kNoNode || FindRoot(node.key) != id(&node)) {
      return absl::InternalError(
          absl::StrCat("root node ", name, " has no child, has a parent, or is not in the table"));
    }
    return absl::OkStatus();
  }
  const bool is_full = node.kind == Kind::kFull;
  QUIRE_RETURN_IF_ERROR(CheckPages(node));
  if (node.parent.value() >= nodes_.size()) {
    return absl::InternalError(absl::StrCat("node ", name, " has no parent"));
  }
  const Node& above = nodes_[node.parent.value()];
  if ((above.kind != Kind::kRoot && above.kind != Kind::kFull) ||
      above.generation != node.parent_generation) {
    return absl::InternalError(
        absl::StrCat("the parent of node ", name, " is partial or was freed"));
  }
  if (is_full != (node.num_tokens == options_.page_size) || node.num_tokens == 0) {
    return absl::InternalError(absl::StrCat("node ", name, " is filled with ", node.num_tokens,
                                            " tokens of ", options_.page_size));
  }
  if (!is_full && !node.children.empty()) {
    return absl::InternalError(absl::StrCat("partial node ", name, " has children"));
  }
  QUIRE_RETURN_IF_ERROR(CheckState(node));
  if (!is_full) return absl::OkStatus();
  if (options_.page_hash(options_.hash_key, above.key, tokens(id(&node))) != node.key) {
    return absl::InternalError(
        absl::StrCat("node ", name, " has a key that does not match its tokens"));
  }
  const auto found = index_.find(node.key);
  if (found == index_.end() || found->second != id(&node)) {
    return absl::InternalError(absl::StrCat("node ", name, " is not in the index"));
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckTree() const {
  std::size_t full = 0;
  std::size_t partial = 0;
  std::size_t roots = 0;
  std::size_t num_linked = 0;
  std::size_t snapshots = 0;
  for (const Node& node : nodes_) {
    if (node.kind == Kind::kUnused) continue;
    QUIRE_RETURN_IF_ERROR(CheckNode(node));
    snapshots += node.state != kNullSlot;
    full += node.kind == Kind::kFull;
    partial += node.kind == Kind::kPartial;
    roots += node.kind == Kind::kRoot;
    bool has_all_pages = true;
    for (const Node* child = node.children.front(); child != nullptr;
         child = Siblings::next(child)) {
      if (child->kind == Kind::kUnused || child->parent != id(&node)) {
        return absl::InternalError(
            absl::StrCat("node ", id(&node).value(), " has a child whose parent is another node"));
      }
      if (HasAllPages(id(child)) && !has_all_pages) {
        return absl::InternalError(absl::StrCat(
            "node ", id(child).value(), " has all its pages but follows a sibling that does not"));
      }
      has_all_pages = HasAllPages(id(child));
      ++num_linked;
    }
  }
  if (index_.size() != full || roots_.size() != roots || num_linked != full + partial ||
      num_nodes_ != full + partial ||
      unused_slots_.size() + full + partial + roots != nodes_.size()) {
    return absl::InternalError(absl::StrCat(
        "prefix cache counts ", index_.size(), " keys, ", roots_.size(), " roots, ", num_linked,
        " children, ", num_nodes_, " nodes and ", unused_slots_.size(), " unused slots, but has ",
        full, " full, ", partial, " partial and ", roots, " root nodes"));
  }
  if (snapshots != states_->num_snapshots()) {
    return absl::InternalError(absl::StrCat(
        "nodes have ", snapshots, " snapshots, the pool counts ", states_->num_snapshots()));
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckEvictionOrder(std::size_t group) const {
  std::vector<std::uint32_t> position(pool_->num_blocks());  // from 1; 0: not cached
  std::uint32_t next = 0;
  for (const BlockId page : pool_->EvictionOrder()) position[page.value()] = ++next;
  for (const Node& node : nodes_) {
    if (node.kind != Kind::kFull && node.kind != Kind::kPartial) continue;
    const BlockId page = pages(id(&node))[group];
    const BlockId above = pages(node.parent)[group];
    if (position[above.value()] == 0) continue;  // `above` is not cached, or the parent is a root
    if (pool_->row_refs(page) > 0 || position[page.value()] > position[above.value()]) {
      return absl::InternalError(absl::StrCat("page ", above.value(),
                                              " would be evicted before page ", page.value(),
                                              ", which continues it"));
    }
  }
  return absl::OkStatus();
}

absl::Status PrefixCache::CheckIntegrity() const {
  QUIRE_RETURN_IF_ERROR(CheckTree());
  for (std::uint32_t page = 1; page < pool_->num_blocks(); ++page) {
    const NodeId node = pool_->node(BlockId{page});
    if (node == kNoNode) continue;
    if (node.value() >= nodes_.size() || GroupOf(BlockId{page}) == num_groups_) {
      return absl::InternalError(
          absl::StrCat("page ", page, " refers to a node that does not have it"));
    }
  }
  for (std::size_t group = 0; group < num_groups_; ++group) {
    if (options_.groups[group].window == 0) QUIRE_RETURN_IF_ERROR(CheckEvictionOrder(group));
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
