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

// Names a node of the prefix cache by its slot in PrefixCache.
using NodeId = StrongId<struct NodeIdTag, std::uint32_t>;
inline constexpr NodeId kNoNode{0xffffffffu};

// The state is derived from the reference counts, the node and the poisoned flag. It is not stored.
enum class PageState : std::uint8_t {
  kNull,         // id 0 only
  kFree,         // no references, no node
  kCached,       // no references, but a node: can be matched; evicted coldest first
  kActive,       // referenced by rows, no node: being filled, or private
  kPublished,    // referenced by rows, with a node
  kInTransit,    // only held: a copy still reads it, or a step in flight pins it
  kQuarantined,  // no references, poisoned: zero-filled before it becomes free
};

absl::string_view PageStateName(PageState state);

// Allocates KV pages, counts the references to them, and frees or caches them.
//
//              Allocate                 AttachNode
//      free ------------> active ------------------------> published
//       ^  ^                |  |  last reference dropped     |   ^
//       |  +----------------+  +-- poisoned --> quarantined   v   | AddRequest
//       +------------------- eviction ---------------------- cached
//
// A page has two reference counts. `requests` counts the (row, column) entries that name the page;
// a page with more than one of them is shared. `holds` counts the page copies that still read the
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
  // Called before a cached page is evicted. The handler must detach the page from its node.
  using EvictionHandler = std::function<void(BlockId page)>;

  // `num_blocks` includes the null page. REQUIRES: num_blocks >= 2.
  explicit BlockPool(std::uint32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void SetEvictionHandler(EvictionHandler handler) { evict_ = std::move(handler); }

  // Allocates out.size() pages with one request reference each. Free pages are used first, then the
  // coldest cached pages are evicted. If too few are available, no page is allocated or evicted and
  // the status is RESOURCE_EXHAUSTED "needs N pages, M available". REQUIRES: !out.empty().
  absl::Status Allocate(std::span<BlockId> out);
  // Frees the coldest cached page. REQUIRES: num_cached() > 0.
  void EvictColdest();
  // Frees a cached page. REQUIRES: the page is cached.
  void Evict(BlockId page);
  // Returns the coldest cached page for which `is_wanted` is true, or the null page. O(cached).
  BlockId FindCached(absl::FunctionRef<bool(BlockId page)> is_wanted) const;

  // All functions below REQUIRE: 0 < page.value() < num_blocks.
  // REQUIRES: the page is neither free nor quarantined.
  void AddRequest(BlockId page);
  void AddHold(BlockId page);
  // If the page becomes cached, it is inserted into the eviction order directly before the cached
  // page `before`, or at the end if `before` is the null page. REQUIRES: the page has a reference
  // of this kind.
  void DropRequest(BlockId page, BlockId before = kNullBlock);
  void DropHold(BlockId page, BlockId before = kNullBlock);

  // REQUIRES: the page is referenced, not poisoned, and has no node.
  void AttachNode(BlockId page, NodeId node);
  // Removes the node of the page. A cached page becomes free. REQUIRES: the page has a node.
  void DetachNode(BlockId page);

  // Quarantines the page when its last reference is dropped. REQUIRES: the page is referenced and
  // has no node.
  void Poison(BlockId page);
  // Records that every value in the page is finite (FiniteProof). The record is cleared when the
  // page is allocated again. REQUIRES: the page is referenced.
  void SetProvenFinite(BlockId page);
  // Frees a quarantined page whose bytes are zero again. REQUIRES: the page is quarantined.
  void FreeQuarantined(BlockId page);
  // Returns all quarantined pages in the order in which they were quarantined.
  std::vector<BlockId> quarantined_pages() const;

  PageState state(BlockId page) const;
  NodeId node(BlockId page) const { return at(page).node; }
  std::uint32_t requests(BlockId page) const { return at(page).requests; }
  std::uint32_t holds(BlockId page) const { return at(page).holds; }
  bool is_referenced(BlockId page) const { return requests(page) + holds(page) > 0; }
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

  // Returns the cached pages, the next one to be evicted first. O(cached).
  std::vector<BlockId> EvictionOrder() const;

  // Checks that lists and counts agree with the derived states. O(num_blocks).
  absl::Status CheckIntegrity() const;

 private:
  friend struct BlockPoolPeer;

  struct Page {
    IntrusiveNode<Page> link;  // free, cached or quarantined list
    NodeId node = kNoNode;
    std::uint32_t requests = 0;
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
  // Unlinks a cached page that is about to get its first reference.
  void Unlink(Page& page);
  // Adds a page that lost its last reference to the list of its state.
  void Link(Page& page, BlockId before);
  absl::Status CheckList(PageState state, std::vector<bool>& seen) const;

  std::vector<Page> pages_;  // [num_blocks]; never resized, as list links point into it
  List free_;                // last in, first out, so that few pages of the pool become resident
  List cached_;              // coldest first
  List quarantined_;
  EvictionHandler evict_;
  std::uint64_t num_detached_ = 0;
  std::uint64_t num_returned_ = 0;
};

}  // namespace quire::cache
