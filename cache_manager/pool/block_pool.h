#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/intrusive_list.h"
#include "base/strong_id.h"

namespace quire::cache {

// Identifies a node of PrefixCache by its index in the node table.
using NodeId = StrongId<struct NodeIdTag, std::uint32_t>;
inline constexpr NodeId kNoNode{0xffffffffu};

// The state of a page. It is derived from the page's reference counts, node and poisoned flag, and
// is not stored.
enum class PageState : std::uint8_t {
  kNull,         // page 0 only
  kFree,         // no references, no node
  kCached,       // no references, but a node: can be matched or evicted
  kActive,       // referenced by rows, no node: cannot be matched
  kPublished,    // referenced by rows, with a node
  kInTransit,    // not referenced by rows, but read by a page copy or pinned by a step in flight
  kQuarantined,  // no references, poisoned: zero-filled before it becomes free
};

absl::string_view PageStateName(PageState state);

// Allocates KV pages, counts the references to them, and frees or caches them.
//
//              Allocate                 AttachNode
//      free ------------> active ------------------------> published
//       ^  ^                |  |  last reference dropped     |   ^
//       |  +----------------+  +-- poisoned --> quarantined   v   | AddRowRef
//       +------------------- eviction ---------------------- cached
//
// A page has two reference counts. `row_refs` counts the lookup-table entries that name the page. A
// page with more than one such entry is shared. `holds` counts the page copies that still read the
// page and the steps in flight that pin the page.
//
// Place:      below PrefixCache and CacheManager, beside KvPool, which owns the bytes. Knows page
//             ids, not memory.
// Invariants: page 0 is the null page and is never allocated. Every other page is in exactly one
//             state (docs/kv_cache.md, section 10); the counts of all states add up to usable().
//             Every operation on one page is O(1).
// Threads:    engine thread only.
// Lifetime:   must outlive every lookup table that names one of its pages.
class BlockPool {
 public:
  // Called to evict a cached page. The handler must call DetachNode for the page, which frees it.
  using EvictionHandler = std::function<void(BlockId page)>;

  // `num_blocks` includes the null page. REQUIRES: num_blocks >= 2.
  explicit BlockPool(std::uint32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void SetEvictionHandler(EvictionHandler handler) { evict_ = std::move(handler); }

  // Allocates out.size() pages with one row reference each. Free pages are used first, then the
  // coldest cached pages are evicted. If too few are available, no page is allocated or evicted and
  // the status is RESOURCE_EXHAUSTED "needs N pages, M available". REQUIRES: !out.empty().
  absl::Status Allocate(std::span<BlockId> out);
  // Evicts the coldest cached page, which becomes free. REQUIRES: num_cached() > 0.
  void EvictColdest();
  // Evicts the page, which becomes free. REQUIRES: the page is cached.
  void Evict(BlockId page);
  // Returns the coldest cached page for which `is_wanted` is true, or the null page. O(cached).
  BlockId FindCached(absl::FunctionRef<bool(BlockId page)> is_wanted) const;

  // Except for state(), every function below that takes a page REQUIRES: 0 < page.value() <
  // num_blocks.
  //
  // Add one row reference or one hold to the counts of the page. REQUIRES: the page is referenced
  // or cached.
  void AddRowRef(BlockId page);
  void AddHold(BlockId page);
  // Drop one row reference or one hold of the page. A page that loses its last reference becomes
  // quarantined if it is poisoned, cached if it has a node, and free otherwise. A page that becomes
  // cached will be evicted directly before the page `before`, or after all other cached pages if
  // `before` is the null page. REQUIRES: the page has a row reference (DropRowRef) or a hold
  // (DropHold); `before` is cached or the null page.
  void DropRowRef(BlockId page, BlockId before = kNullBlock);
  void DropHold(BlockId page, BlockId before = kNullBlock);

  // Makes the page one of the pages of `node`. REQUIRES: the page is referenced, not poisoned, and
  // has no node.
  void AttachNode(BlockId page, NodeId node);
  // Removes the node of the page. A cached page becomes free. REQUIRES: the page has a node.
  void DetachNode(BlockId page);

  // Marks the page as poisoned, so that it becomes quarantined when its last reference is dropped.
  // REQUIRES: the page is referenced and has no node.
  void Poison(BlockId page);
  // Records that every value in the page is finite (FiniteProof). The record is cleared when the
  // page is allocated again. REQUIRES: the page is referenced.
  void SetProvenFinite(BlockId page);
  // Frees a quarantined page whose bytes are zero again. REQUIRES: the page is quarantined.
  void FreeQuarantined(BlockId page);
  // Returns all quarantined pages in the order in which they were quarantined.
  std::vector<BlockId> quarantined_pages() const { return PagesIn(quarantined_); }

  // REQUIRES: page.value() < num_blocks.
  PageState state(BlockId page) const;
  NodeId node(BlockId page) const { return at(page).node; }
  std::uint32_t row_refs(BlockId page) const { return at(page).row_refs; }
  std::uint32_t holds(BlockId page) const { return at(page).holds; }
  bool is_referenced(BlockId page) const { return row_refs(page) + holds(page) > 0; }
  bool is_poisoned(BlockId page) const { return at(page).is_poisoned; }
  bool is_proven_finite(BlockId page) const { return at(page).is_proven_finite; }

  std::uint32_t num_blocks() const { return static_cast<std::uint32_t>(pages_.size()); }
  std::uint32_t usable() const { return num_blocks() - 1; }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t num_cached() const { return static_cast<std::uint32_t>(cached_.size()); }
  std::uint32_t num_quarantined() const { return static_cast<std::uint32_t>(quarantined_.size()); }
  std::uint32_t available() const { return num_free() + num_cached(); }
  // Number of calls of DetachNode, each of which unpublishes a page.
  std::uint64_t num_detached() const { return num_detached_; }

  // Number of times that a page became available.
  std::uint64_t num_returned() const { return num_returned_; }

  // Returns the cached pages in the order in which they would be evicted. O(cached).
  std::vector<BlockId> EvictionOrder() const { return PagesIn(cached_); }

  // Checks that lists and counts agree with the derived states. O(num_blocks).
  absl::Status CheckIntegrity() const;

 private:
  friend struct BlockPoolPeer;

  struct Page {
    IntrusiveNode<Page> link;  // free, cached or quarantined list
    NodeId node = kNoNode;
    std::uint32_t row_refs = 0;
    std::uint32_t holds = 0;
    bool is_poisoned = false;
    bool is_proven_finite = false;
  };
  using List = IntrusiveList<Page, &Page::link>;

  Page& at(BlockId page);
  const Page& at(BlockId page) const;
  BlockId id(const Page* page) const;
  PageState StateOf(const Page& page) const;
  List* ListOf(PageState state);
  const List* ListOf(PageState state) const;
  // Removes the page from the list of cached pages if it is about to get its first reference.
  void Unlink(Page& page);
  // Adds the page to the list of its state if it has lost its last reference. See DropRowRef for
  // `before`.
  void Link(Page& page, BlockId before);
  std::vector<BlockId> PagesIn(const List& list) const;
  absl::Status CheckList(PageState state, std::vector<bool>& seen) const;

  std::vector<Page> pages_;  // [num_blocks]; never resized, as list links point into it
  List free_;                // last in, first out, so that little memory of the pool is touched
  List cached_;              // coldest first
  List quarantined_;
  EvictionHandler evict_;
  std::uint64_t num_detached_ = 0;
  std::uint64_t num_returned_ = 0;
};

}  // namespace quire::cache
