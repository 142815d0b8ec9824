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

// A node of the prefix cache: its slot in PrefixCache.
using NodeId = StrongId<struct NodeIdTag, std::uint32_t>;
inline constexpr NodeId kNoNode{0xffffffffu};

// Derived from references, node and the poisoned mark; never stored.
enum class PageState : std::uint8_t {
  kNull,         // id 0 only
  kFree,         // no references, no node
  kCached,       // no references, but a node: still hittable, evicted coldest first
  kActive,       // referenced by rows, no node: being filled, or private
  kPublished,    // referenced by rows, with a node
  kInTransit,    // referenced only by page copies that have not completed
  kQuarantined,  // no references, poisoned: zero-filled before it becomes free
};

absl::string_view PageStateName(PageState state);

// Hands out KV pages, counts the references to them and takes them back.
//
//              Allocate                 AttachNode
//      free ------------> active ------------------------> published
//       ^  ^                |  |  last reference dropped     |   ^
//       |  +----------------+  +-- poisoned --> quarantined   v   | AddRequest
//       +------------------- eviction ---------------------- cached
//
// A page has two counts: requests, one for each (row, column) that names it, and transfers, one for
// each page copy that still reads it. Only the first makes a page shared.
//
// Place:      below PrefixCache and CacheManager, beside KvPool (which owns the bytes). Knows ids,
//             never memory.
// Invariants: page 0 is the null page and is never handed out. Every other page is in exactly one
//             state (docs/kv_cache.md, section 10); the counts of all states add up to usable().
//             Every operation on one page is O(1).
// Threads:    engine thread only.
// Lifetime:   must outlive every lookup table that names one of its pages.
class BlockPool {
 public:
  // Told that a cached page is about to be taken; must detach it from its node before it returns.
  using EvictionHandler = std::function<void(BlockId page)>;

  // REQUIRES: num_blocks >= 2; it counts the null page.
  explicit BlockPool(std::uint32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void SetEvictionHandler(EvictionHandler handler) { evict_ = std::move(handler); }

  // Fills `out` with pages that have one request reference each, free ones first, then the coldest
  // cached ones; or takes none. REQUIRES: !out.empty(). Returns RESOURCE_EXHAUSTED
  // "needs N pages, M available" when too few are left.
  absl::Status Allocate(std::span<BlockId> out);
  // The coldest cached page, or the given one, becomes free. REQUIRES: it is cached.
  void EvictColdest();
  void Evict(BlockId page);
  // The coldest cached page that is wanted; the null page when none is. O(cached).
  BlockId FindCached(absl::FunctionRef<bool(BlockId page)> is_wanted) const;

  // REQUIRES (all below): 0 < page.value() < num_blocks.
  // REQUIRES for the Add functions: the page is neither free nor quarantined.
  void AddRequest(BlockId page);
  void AddTransfer(BlockId page);
  // REQUIRES for the Drop functions: the count is not 0. A page that becomes cached is evicted
  // directly before the cached page `before`, or after all others when that is the null page.
  void DropRequest(BlockId page, BlockId before = kNullBlock);
  void DropTransfer(BlockId page, BlockId before = kNullBlock);

  // REQUIRES: the page is referenced, not poisoned, and has no node.
  void AttachNode(BlockId page, NodeId node);
  // A cached page becomes free. REQUIRES: the page has a node.
  void DetachNode(BlockId page);

  // The page is quarantined as soon as it has no reference. REQUIRES: referenced, without a node.
  void MarkPoisoned(BlockId page);
  // What the page holds is finite: logits that read all of it were. Until it is handed out again.
  // REQUIRES: the page is referenced.
  void MarkProven(BlockId page);
  // The bytes are zero again. REQUIRES: the page is quarantined.
  void FreeQuarantined(BlockId page);
  // All quarantined pages, those first that came first.
  std::vector<BlockId> quarantined_pages() const;

  PageState state(BlockId page) const;
  NodeId node(BlockId page) const { return at(page).node; }
  std::uint32_t requests(BlockId page) const { return at(page).requests; }
  std::uint32_t transfers(BlockId page) const { return at(page).transfers; }
  bool is_referenced(BlockId page) const { return requests(page) + transfers(page) > 0; }
  bool is_poisoned(BlockId page) const { return at(page).poisoned; }
  bool is_proven(BlockId page) const { return at(page).proven; }

  std::uint32_t num_blocks() const { return static_cast<std::uint32_t>(pages_.size()); }
  std::uint32_t usable() const { return num_blocks() - 1; }
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::uint32_t num_cached() const { return static_cast<std::uint32_t>(cached_.size()); }
  std::uint32_t num_quarantined() const { return static_cast<std::uint32_t>(quarantined_.size()); }
  std::uint32_t available() const { return num_free() + num_cached(); }
  // Calls of DetachNode: pages that have stopped being findable, for whatever reason.
  std::uint64_t num_detached() const { return num_detached_; }

  // How often a page has become available.
  std::uint64_t num_returned() const { return num_returned_; }

  // Cached pages, the one to be evicted first in front. O(cached).
  std::vector<BlockId> EvictionOrder() const;

  // Proves in O(num_blocks) that lists and counts agree with the derived states.
  absl::Status CheckIntegrity() const;

 private:
  friend struct BlockPoolPeer;

  struct Page {
    IntrusiveNode<Page> link;  // free, cached or quarantined list
    NodeId node = kNoNode;
    std::uint32_t requests = 0;
    std::uint32_t transfers = 0;
    bool poisoned = false;
    bool proven = false;
  };
  using List = IntrusiveList<Page, &Page::link>;

  Page& at(BlockId page);
  const Page& at(BlockId page) const;
  BlockId id(const Page* page) const;
  PageState StateOf(const Page& page) const;
  List* ListOf(PageState state);
  const List* ListOf(PageState state) const;
  // Unlinks an unreferenced page because it gets its first reference.
  void Pick(Page& page);
  // Puts a page that lost its last reference into the list of its state.
  void Settle(Page& page, BlockId before);
  absl::Status CheckList(PageState state, std::vector<bool>& seen) const;

  std::vector<Page> pages_;  // [num_blocks]; never resized, as list links point into it
  List free_;                // last in, first out: keeps the touched part of the pool small
  List cached_;              // coldest first
  List quarantined_;
  EvictionHandler evict_;
  std::uint64_t num_detached_ = 0;
  std::uint64_t num_returned_ = 0;
};

}  // namespace quire::cache
