#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "base/intrusive_list.h"
#include "base/strong_id.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/pool/page_demand.h"
#include "cache_manager/prefix/page_hash.h"

namespace quire::cache {

struct PrefixCacheOptions {
  std::uint32_t page_size = 0;
  std::vector<CacheGroup> groups = {CacheGroup{}};
  HashKey hash_key{};
  PageHashFunction page_hash = &HashPage;  // what the given keys were made with
  // Nodes without pages for which there is memory; of use where all groups have windows.
  std::uint32_t max_empty_nodes = 0;
};

// Which token histories lie in which pages: a tree of nodes, one page of tokens each, under one
// root per sharing scope.
//
//   root(scope) ---- [P tokens] ---- [P tokens] ---- [P tokens]
//                         |                 |
//                         +-- [P tokens]    +-- [f < P tokens]    a partial child: only copied
//
// A full node is found by its key, and then its tokens and its parent are compared, so by induction
// over the path the whole history is equal: a collision of keys is a miss, never a wrong page. Of
// two histories with one key the second stays unpublished.
//
// All layer groups share the tree. A node has a page of each group without window, as no history
// can be used without it; with such a page the node goes, and all below it. The page of a window
// group may be missing, since only the last ones of a history are read: it is evicted alone. A node
// lives as long as it has a page or a child.
//
// Place:      above BlockPool, whose pages it names; below CacheManager. Knows tokens and ids,
//             never rows or memory.
// Invariants: a page of a node has this node; the node's parents up to the root exist. A root has a
//             child. A partial child has pages of all groups. Children with pages of all groups
//             come before the others. In groups without window eviction is leaf first: a cached
//             page has no child that a row refers to and no child that is evicted later. A node's
//             tokens hash to its key; the index holds exactly the full nodes. CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   must not outlive its BlockPool.
class PrefixCache {
 public:
  // How many children of a node are compared for the beginning of a page.
  static constexpr std::uint32_t kMaxPartialCandidates = 8;

  struct Child {
    NodeId node = kNoNode;
    bool collision = false;  // the key is taken by another history
  };
  struct Beginning {
    NodeId node = kNoNode;
    std::uint32_t rows = 0;
  };

  // An upper bound of the memory that a cache of these options over a pool of `num_blocks` holds
  // beside the pool's own: all of it from the start, and never more. Grows with `num_blocks`, which
  // counts the null page.
  static std::int64_t BytesFor(const PrefixCacheOptions& options, std::uint32_t num_blocks);

  // Makes itself the eviction handler of `pool`.
  PrefixCache(const PrefixCacheOptions& options, BlockPool* pool);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // kNoNode when nothing is published under `root`.
  NodeId FindRoot(const Hash128& root) const;
  // The full child of `parent` with this key and exactly these page_size tokens. `parent` may be
  // kNoNode, which has no children.
  Child FindChild(NodeId parent, const PageKey& key, std::span<const std::int32_t> tokens) const;
  // The child of `parent`, among the kMaxPartialCandidates most recently used ones, that has the
  // longest common beginning with `tokens`; the most recent one of equals. Full and partial
  // children that have pages of all groups.
  Beginning FindPartialMatch(NodeId parent, std::span<const std::int32_t> tokens) const;

  // Makes sure that a root and a child can be added. There is memory for a root and a node of each
  // page and for max_empty_nodes. Where more of those are kept by pages that follow them, histories
  // without a reference make room, from their ends, the coldest first: O(cached pages). False
  // when there are none.
  bool MakeRoom();
  // The root node, made on demand. It must get a child before the next operation. REQUIRES (both
  // and AddPartialChild): there is room.
  NodeId AddRoot(const Hash128& root);
  // Publishes `pages`, one per group, as the newest child of `parent`. REQUIRES: FindChild finds
  // neither node nor collision, tokens.size() == page_size; each page is referenced and has no
  // node.
  NodeId AddChild(NodeId parent, const PageKey& key, std::span<const std::int32_t> tokens,
                  std::span<const BlockId> pages);
  // The same for pages that only tokens.size() < page_size tokens fill.
  NodeId AddPartialChild(NodeId parent, std::span<const std::int32_t> tokens,
                         std::span<const BlockId> pages);
  // Gives a full node the page of a group that it lacks. REQUIRES: as above.
  void AddPage(NodeId node, std::size_t group, BlockId page);

  // Makes the node the most recently used child of its parent, if it has all its pages.
  void Touch(NodeId node);
  // Removes the node and all below it: nothing of them is found any more, unreferenced pages become
  // free. Roots that lose their last child go too.
  void DropSubtree(NodeId node);

  // The node's pages by group; the null page where it has none.
  std::span<const BlockId> pages(NodeId node) const {
    QUIRE_DCHECK(node.value() < nodes_.size());
    return {pages_.data() + node.value() * num_groups_, num_groups_};
  }
  NodeId parent(NodeId node) const { return at(node).parent; }
  bool is_full(NodeId node) const { return at(node).kind == Kind::kFull; }
  // True for the root node of `root`.
  bool is_root(NodeId node, const Hash128& root) const {
    return at(node).kind == Kind::kRoot && at(node).key == root;
  }

  // Where a page that has a node belongs in the eviction order, now that it becomes cached: before
  // this page, in a group without window its nearest cached ancestor, or at the warm end when that
  // is the null page.
  BlockId EvictedBefore(BlockId page) const;
  // The nodes that EvictedBefore has gone over: what giving pages back costs beyond O(1) each.
  std::uint64_t num_visited() const { return num_visited_; }

  std::uint32_t num_nodes() const { return num_nodes_; }  // roots not counted
  // Grows whenever pages become findable.
  std::uint64_t num_published() const { return num_published_; }
  // Grows whenever a node or a page of one goes away; a match stays valid as long as it does not.
  std::uint64_t generation() const { return generation_; }

  // Proves the invariants in O(num_blocks * page_size).
  absl::Status CheckIntegrity() const;

 private:
  friend struct PrefixCachePeer;

  enum class Kind : std::uint8_t { kUnused, kRoot, kFull, kPartial };
  struct Node {
    IntrusiveNode<Node> sibling;
    // Those with pages of all groups first, most recently used ones before others.
    IntrusiveList<Node, &Node::sibling> children;
    PageKey key;              // of a root: the root itself; of a partial child: nothing
    NodeId parent = kNoNode;  // kNoNode for a root
    std::uint32_t parent_generation = 0;
    std::uint32_t generation = 0;  // how often this slot was reused
    std::uint32_t filled = 0;      // tokens: page_size, less for a partial child, 0 for a root
    Kind kind = Kind::kUnused;
  };
  using Siblings = IntrusiveList<Node, &Node::sibling>;

  Node& at(NodeId node);
  const Node& at(NodeId node) const;
  NodeId id(const Node* node) const;
  std::span<const std::int32_t> tokens(NodeId node) const;
  NodeId TakeSlot(Kind kind);
  NodeId Link(Kind kind, NodeId parent, std::span<const std::int32_t> tokens,
              std::span<const BlockId> pages);
  // The node's place for its page of a group.
  BlockId& page(NodeId node, std::size_t group);
  // Which of its node's pages this is; the number of groups when it is none of them.
  std::size_t GroupOf(BlockId page) const;
  bool HasPages(NodeId node) const;
  bool HasAllPages(NodeId node) const;
  // The pool takes a cached page.
  void Evict(BlockId page);
  void RemoveLeaf(NodeId node);
  // Removes the node and those above it as far as they have neither page nor child.
  void Prune(NodeId node);
  // Whether the node would go with its pages, and they have no reference.
  bool IsColdLeaf(NodeId node) const;
  absl::Status CheckPages(const Node& node) const;
  absl::Status CheckNode(const Node& node) const;
  absl::Status CheckTree() const;
  absl::Status CheckEvictionOrder(std::size_t group) const;

  const PrefixCacheOptions options_;
  const std::size_t num_groups_;
  BlockPool* const pool_;
  std::vector<Node> nodes_;                     // with those of roots; never resized
  std::vector<NodeId> unused_;                  // slots of nodes_, last in, first out
  std::vector<std::int32_t> tokens_;            // [nodes_, page_size]
  std::vector<BlockId> pages_;                  // [nodes_, groups]
  absl::flat_hash_map<PageKey, NodeId> index_;  // full nodes; never iterated for a decision
  absl::flat_hash_map<Hash128, NodeId> roots_;
  std::uint32_t num_nodes_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t num_published_ = 0;
  mutable std::uint64_t num_visited_ = 0;
};

}  // namespace quire::cache
