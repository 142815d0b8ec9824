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
#include "cache_manager/pool/state_pool.h"
#include "cache_manager/prefix/page_hash.h"

namespace quire::cache {

struct PrefixCacheOptions {
  std::uint32_t page_size = 0;
  std::vector<CacheGroup> groups = {CacheGroup{}};
  HashKey hash_key{};
  PageHashFunction page_hash = &HashPage;  // the function that computed the keys
  // Capacity for nodes without pages. Such nodes exist only if every group has a window.
  std::uint32_t max_empty_nodes = 0;
};

// A radix tree of published token histories. Each sharing scope (PrefixScope) has a root node.
// Every other node stores the tokens of one page.
//
//   root(scope) ---- [P tokens] ---- [P tokens] ---- [P tokens]
//                         |                 |
//                         +-- [P tokens]    +-- [f < P tokens]   partial child: reused by copy only
//
// Lookup. A full node is found by its 128-bit key; then its tokens and its parent are compared. By
// induction the whole history is equal, so a key collision is a miss and never yields a wrong page.
// If two histories have the same key, only the first one is published.
//
// Layer groups. All groups share the tree; a node owns at most one page per group.
//   - Group without window: every page of a history is read, so evicting one removes the node and
//     its subtree.
//   - Group with window: only the last pages are read, so the pages of full nodes are evicted one
//     at a time.
// A node exists while it owns a page or has a child.
//
// States. In a model with recurrent layers a node may own a snapshot: the slot with the state after
// the node's last token. A partial child then always owns a snapshot, because it cannot be reused
// without one.
//
// Place:      above BlockPool and StatePool, below CacheManager. Knows ids of tokens, pages and
//             slots, not sequences or memory.
// Threads:    engine thread only.
// Lifetime:   destroyed before its pools.
// Invariants (CheckIntegrity):
//   1. pool.node(p) == n if and only if node n owns page p.
//   2. Every parent chain ends at a root, and every root has a child.
//   3. A partial child owns a page in every group.
//   4. Among siblings, those that own all their pages come first.
//   5. Groups without window evict leaves first: if the page of a node is cached, no page of its
//      child nodes is referenced by a row or evicted later than that page.
//   6. The index has exactly the full nodes, each under its key (page_hash.h).
//   7. states.node(s) == n if and only if node n owns slot s. The state follows exactly the tokens
//      of n's history, and n owns a page in every group (I14 and I16 of docs/kv_cache.md).
class PrefixCache {
 public:
  // Maximum number of children of a node that a search for partial matches compares.
  static constexpr std::uint32_t kMaxPartialCandidates = 8;

  struct Child {
    NodeId node = kNoNode;
    bool collision = false;  // the key belongs to another history
  };
  struct PartialMatch {
    NodeId node = kNoNode;
    std::uint32_t num_tokens = 0;
  };

  // Returns an upper bound, in bytes, of the memory of a cache with these options, without its
  // pools. The constructor allocates all of it. It grows with `num_blocks`, which counts the null
  // page.
  static std::int64_t BytesFor(const PrefixCacheOptions& options, std::uint32_t num_blocks);

  // Installs itself as the eviction handler of the pools.
  PrefixCache(const PrefixCacheOptions& options, BlockPool* pool, StatePool* states);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Returns the root node of `scope`, or kNoNode if the scope has no published page.
  NodeId FindRoot(const Hash128& scope) const;
  // Returns the full child of `parent` that has this key and exactly these page_size tokens.
  // `parent` may be kNoNode, which has no children.
  Child FindChild(NodeId parent, const PageKey& key, std::span<const std::int32_t> tokens) const;
  // Returns the child of `parent` with the longest common prefix with `tokens`, and the length of
  // that prefix. Only the kMaxPartialCandidates most recently used children that own all their
  // pages are compared. Of several children with equally long prefixes, the most recently used one
  // is returned.
  PartialMatch FindPartialMatch(NodeId parent, std::span<const std::int32_t> tokens) const;
  // Returns the longest partial child of `parent` whose tokens are a prefix of `tokens`. Only the
  // kMaxPartialCandidates most recently used partial children are compared.
  PartialMatch FindWholePartial(NodeId parent, std::span<const std::int32_t> tokens) const;

  // Ensures that one root and one child can be added. If the node table is full, evicts leaf nodes
  // without referenced pages, coldest first. Returns false if there is no such node. O(cached
  // pages) per eviction.
  bool MakeRoom();
  // Returns the root node of `scope` and creates it if it does not exist. The caller adds a child
  // before the next operation. REQUIRES: MakeRoom() returned true.
  NodeId AddRoot(const Hash128& scope);
  // Publishes `pages`, one per group, as the most recently used child of `parent`. REQUIRES:
  // MakeRoom() returned true; FindChild finds neither a node nor a collision; tokens.size() ==
  // page_size; each page is referenced and has no node.
  NodeId AddChild(NodeId parent, const PageKey& key, std::span<const std::int32_t> tokens,
                  std::span<const BlockId> pages);
  // Publishes `pages` as a partial child, which is reused by copy only. REQUIRES: MakeRoom()
  // returned true; 0 < tokens.size() < page_size; each page is referenced and has no node.
  NodeId AddPartialChild(NodeId parent, std::span<const std::int32_t> tokens,
                         std::span<const BlockId> pages);
  // Adds to a full node the page that it lacks in `group`. REQUIRES: the page is referenced and has
  // no node.
  void AddPage(NodeId node, std::size_t group, BlockId page);

  // Makes `slot` the snapshot of the node. REQUIRES: the slot is frozen and has a reader; the node
  // has no snapshot and owns all its pages.
  void SetState(NodeId node, StateSlot slot);
  // Detaches the snapshot from a full node. Removes a partial child together with its snapshot.
  // REQUIRES: the node has a snapshot.
  void RemoveState(NodeId node);
  // Removes snapshots from the path to `node` until the path has at most `limit` of them. Snapshots
  // of partial children whose tokens are a prefix of the path's tokens count too. The snapshot
  // whose two neighbours on the path are closest together is removed first. Snapshots of nodes
  // where other histories branch off are removed only while these snapshots alone exceed the limit.
  // The last two snapshots of the path and snapshots that a row reads are never removed. O(nodes of
  // the path and their children). REQUIRES: the node has a snapshot.
  void ThinStates(NodeId node, std::size_t limit);

  // Makes the node the most recently used child of its parent if it owns all its pages.
  void Touch(NodeId node);
  // Removes the node and its subtree, and then ancestors that have neither a page nor a child any
  // more. The pages of removed nodes can no longer be matched, and unreferenced ones become free.
  void DropSubtree(NodeId node);

  // Drop one row reference or one hold of `page` (BlockPool). A page that has a node and loses its
  // last reference becomes cached. It will be evicted directly before its nearest cached ancestor.
  // If no ancestor is cached, or if the page's group has a window, it will be evicted last.
  void DropRowRef(BlockId page);
  void DropHold(BlockId page);

  // Returns the node's pages by group. The entry of a group without a page is the null page.
  std::span<const BlockId> pages(NodeId node) const {
    QUIRE_DCHECK(node.value() < nodes_.size());
    return {pages_.data() + node.value() * num_groups_, num_groups_};
  }
  NodeId parent(NodeId node) const { return at(node).parent; }
  StateSlot state(NodeId node) const { return at(node).state; }  // kNullSlot if it has none
  // True if the node's snapshot is proven finite. REQUIRES: the node has one.
  bool is_state_proven(NodeId node) const { return states_->is_proven_finite(at(node).state); }
  bool is_full(NodeId node) const { return at(node).kind == Kind::kFull; }
  bool is_root(NodeId node, const Hash128& scope) const {
    return at(node).kind == Kind::kRoot && at(node).key == scope;
  }

  // Number of nodes visited by EvictionSuccessorOf since construction; tests bound it.
  std::uint64_t num_visited() const { return num_visited_; }
  std::uint32_t num_nodes() const { return num_nodes_; }  // without roots
  // Number of nodes and pages published since construction.
  std::uint64_t num_published() const { return num_published_; }
  // Incremented whenever a node is removed or loses a page or its snapshot. A match made at the
  // same generation is still valid.
  std::uint64_t generation() const { return generation_; }

  // Checks the invariants in O(num_blocks * page_size).
  absl::Status CheckIntegrity() const;

 private:
  friend struct PrefixCachePeer;

  enum class Kind : std::uint8_t { kUnused, kRoot, kFull, kPartial };
  struct Node {
    IntrusiveNode<Node> sibling;
    // Children that own all their pages come first, the most recently used one in front.
    IntrusiveList<Node, &Node::sibling> children;
    PageKey key;              // the scope for a root, unset for a partial child
    NodeId parent = kNoNode;  // kNoNode for a root
    std::uint32_t parent_generation = 0;
    // Incremented when the node is removed, so that CheckIntegrity detects remaining children.
    std::uint32_t generation = 0;
    std::uint32_t num_tokens = 0;  // page_size; fewer for a partial child; 0 for a root
    StateSlot state;               // snapshot after the last token; kNullSlot if none
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
  BlockId& page(NodeId node, std::size_t group);
  // Returns the group for which the page's node owns the page, or the number of groups if the node
  // does not own it.
  std::size_t GroupOf(BlockId page) const;
  bool HasPages(NodeId node) const;
  bool HasAllPages(NodeId node) const;
  // Returns the cached page directly before which `page` must be evicted once it is cached. In a
  // group without window this is the nearest cached ancestor of `page`, so that leaves are evicted
  // first. Returns the null page if `page` must be evicted last: it has no cached ancestor, or its
  // group has a window.
  BlockId EvictionSuccessorOf(BlockId page) const;
  // Unpublishes a cached page that the pool is about to evict.
  void Evict(BlockId page);
  void RemoveLeaf(NodeId node);
  // While the node has neither a page nor a child, removes it and continues with its parent.
  void Prune(NodeId node);
  // True if the node has no children and none of its pages is referenced. Evicting the pages of
  // such a node removes the node.
  bool IsColdLeaf(NodeId node) const;
  // Appends snapshots to path_states_. First come the snapshots of those partial children of
  // `parent` whose tokens are a prefix of the tokens of `path_child`, longest first. The snapshot
  // of `parent` is last. REQUIRES: `parent` is the parent of `path_child`.
  void AddStates(NodeId parent, NodeId path_child);
  absl::Status CheckPages(const Node& node) const;
  absl::Status CheckState(const Node& node) const;
  absl::Status CheckNode(const Node& node) const;
  absl::Status CheckTree() const;
  absl::Status CheckEvictionOrder(std::size_t group) const;

  // Returns the index in path_states_ of the snapshot to remove next, or 0 if none may be removed.
  // If `at_branches`, considers only snapshots of nodes where other histories branch off.
  // Otherwise considers only the other snapshots.
  std::size_t FindStateToRemove(bool at_branches) const;

  struct PathState {
    std::uint32_t tokens = 0;
    NodeId node = kNoNode;
    bool is_branch = false;
  };

  const PrefixCacheOptions options_;
  const std::size_t num_groups_;
  BlockPool* const pool_;
  StatePool* const states_;
  std::vector<Node> nodes_;                     // roots included; never resized
  std::vector<NodeId> unused_slots_;            // indices of nodes_, last in, first out
  std::vector<std::int32_t> tokens_;            // [nodes_, page_size]
  std::vector<BlockId> pages_;                  // [nodes_, groups]
  absl::flat_hash_map<PageKey, NodeId> index_;  // full nodes by key; never iterated
  absl::flat_hash_map<Hash128, NodeId> roots_;
  std::vector<PathState> path_states_;  // scratch of ThinStates
  std::uint32_t num_nodes_ = 0;
  std::uint64_t generation_ = 0;
  std::uint64_t num_published_ = 0;
  mutable std::uint64_t num_visited_ = 0;
};

}  // namespace quire::cache
