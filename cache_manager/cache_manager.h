#pragma once

// The facade of the KV cache: who holds which pages, which prefixes can be shared, and the arrays
// that kernels read. It knows token ids and rows, never requests, and ids of pages, never their
// bytes: page copies and clears that an operation needs are returned as work for the runner of the
// next step.
//
//   match = cache->Match(tokens, keys, root, limit);   pure
//   cache->Attach(row, match, root);                   takes references
//   cache->Reserve(row, all_tokens, those_of_steps);   fresh pages, all or nothing
//   cache->CountLookup(match, prompt_tokens);          once per request, when all that has worked
//   inputs = cache->PrepareStep(rows);                 lookup tables and lengths for the kernels
//   clears, copies = cache->TakeClears(), TakeCopies() the runner does both, then computes
//   cache->CompleteStep();                             the oldest step in flight has run
//   cache->Publish(row, tokens, &keys, computed);      full pages become findable
//   cache->ReleaseOutsideWindow(row, computed);        pages that no later token reads go back
//   cache->Free(row);                                  reverse order; published pages stay hittable
//
// The layers of a model are one or more groups (page_demand.h) over one pool of equal pages. A row
// has one page per column in each group without window; in a window group it has those that its
// next token and the tokens being computed can read.
//
// Place:      above KvPool's ids, BlockPool, LookupTable and PrefixCache; below the scheduler.
// Invariants: docs/kv_cache.md, I1 to I11 as far as one tier goes. In each row and group the pages
//             with nodes come first, and each one's node continues the one before it; the pages of
//             one column have the same node. So who refers to a page refers, in the groups without
//             window, to its whole prefix. CheckIntegrity().
// Threads:    engine thread only. HashPages (page_hash.h) may run anywhere.
// Lifetime:   must outlive every step that reads its arrays.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/keyed_hash.h"
#include "base/strong_id.h"
#include "cache_manager/pool/page_demand.h"
#include "cache_manager/prefix/page_hash.h"
#include "cache_manager/views/kv_params.h"
#include "cache_manager/views/kv_step_inputs.h"

namespace quire::cache {

struct CacheManagerOptions {
  KvGeometry geometry;  // of a page of any group; num_blocks includes the null page
  std::vector<CacheGroup> groups = {CacheGroup{}};
  std::uint32_t max_rows = 0;            // rows of a lookup table
  std::uint32_t max_context_tokens = 0;  // most tokens of a row, those of steps ahead included
  // Most tokens of a row that are planned or in flight at a time. Only bounds what demand() says;
  // at least 1 with a window group.
  std::uint32_t max_row_overlap_tokens = 0;
  bool prefix_caching = true;
  bool partial_page_reuse = true;          // at first; SetPartialPageReuse
  HashKey hash_key{};                      // random per process
  PageHashFunction page_hash = &HashPage;  // what the callers' keys are made with
};

// Rows [0, num_rows) of every layer's K and V in page `source` are copied to page `target` before
// the step computes anything.
struct PageCopy {
  BlockId source;
  BlockId target;
  std::uint32_t num_rows = 0;
};

// The answer of Match: a run of full pages and perhaps the beginning of one more. Valid until a
// page stops being findable (eviction, Invalidate, Flush); Attach refuses an outdated one
// (generation).
struct PrefixMatch {
  std::uint32_t num_tokens = 0;  // full pages * page size + partial rows
  // Full pages to share, [columns, groups]. The null page where a window group has none, and the
  // tokens after the match read none; of the others Attach takes those that they read.
  std::vector<BlockId> pages;
  std::vector<BlockId> partial_sources;  // one per group, or none at all
  std::uint32_t partial_rows = 0;
  // Of the full pages; after them comes one of which it is not known whether it is finite.
  std::uint32_t proven_tokens = 0;
  bool is_partial_proven = false;  // whether it is known of the page whose beginning is copied
  std::uint64_t generation = 0;
  bool collision = false;  // it ended at a page with an equal key but other tokens
};

struct CacheStats {
  std::uint32_t usable_pages = 0;  // without the null page
  std::uint32_t free_pages = 0;
  std::uint32_t cached_pages = 0;  // unreferenced and findable
  std::uint32_t used_pages = 0;    // everything else
  std::uint64_t hit_tokens = 0;    // CountLookup
  std::uint64_t queried_tokens = 0;
  std::uint64_t evicted_pages = 0;
  std::uint64_t collisions = 0;  // equal keys, different tokens: CountLookup, Publish
};

// How one page is used, for snapshots of the pool.
struct PageUse {
  // As CacheStats counts.
  enum class Kind : std::uint8_t { kFree, kCached, kUsed } kind = Kind::kFree;
  std::uint32_t num_rows = 0;  // rows that refer to it; a used page may have none (copies, clears)
  BatchRow row{0};             // the last of them
};

struct FlushCounts {
  std::uint32_t freed_pages = 0;
  std::uint32_t retained_pages = 0;  // still referenced; they lost their nodes
};

// One scheduled row of the coming step.
struct RowStep {
  BatchRow row;
  std::uint32_t cache_length = 0;  // tokens whose K and V are written
  std::uint32_t new_tokens = 0;
};

class CacheManager {
 public:
  // Returns INVALID_ARGUMENT for options that cannot be, RESOURCE_EXHAUSTED when the arrays do not
  // fit into memory.
  static absl::StatusOr<std::unique_ptr<CacheManager>> Create(const CacheManagerOptions& options);
  // An upper bound of the host memory that the prefix index of such a manager holds: tokens, keys
  // and nodes of every page that can be found. Grows with geometry.num_blocks. REQUIRES: Create
  // takes the options.
  static std::int64_t PrefixIndexBytes(const CacheManagerOptions& options);
  ~CacheManager();

  // The longest stored prefix of `tokens`, at most `max_tokens` long (the caller keeps one token
  // back, or more when it needs logits of prompt positions). `keys` are those of the full pages of
  // `tokens` under `root`. Takes nothing and counts nothing.
  PrefixMatch Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                    const Hash128& root, std::uint32_t max_tokens) const;

  // Makes the matched pages, perhaps none, the first columns of `row` and `root` the scope under
  // which it publishes. With partial sources a fresh page is taken in each group and a PageCopy
  // queued; the sources are not available until that copy has completed. Returns
  // RESOURCE_EXHAUSTED, having done nothing, when those pages are missing; ABORTED when the match
  // is outdated. REQUIRES: the row has no pages.
  absl::Status Attach(BatchRow row, const PrefixMatch& match, const Hash128& root);
  // Counts a match that is used: of `queried_tokens` asked for, so many hit. For the first
  // admission of a request, once it has succeeded.
  void CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens);

  // Pages for `total_tokens` tokens in the groups without window, for the first `step_tokens` of
  // them in window groups; keeps what the row has. All or nothing over the groups:
  // RESOURCE_EXHAUSTED with reason-free text "needs N pages, M available" and nothing evicted on
  // refusal. REQUIRES: step_tokens <= total_tokens; total_tokens fit into max_context_tokens.
  absl::Status Reserve(BatchRow row, std::uint32_t total_tokens, std::uint32_t step_tokens);
  absl::Status Reserve(BatchRow row, std::uint32_t tokens) { return Reserve(row, tokens, tokens); }

  // Makes findable every page of `row` that [0, computed_tokens) of `tokens` fills. Missing keys
  // are appended to `keys`. When an equal page is already findable the row adopts it and its own is
  // freed. A row publishes nothing, or nothing more, when it was never attached, when publishing is
  // off (SetPublish), from a page on whose key another history has taken, from a proven page on
  // whose equal is findable and not proven, and after Flush or Invalidate took the node of one of
  // its pages. REQUIRES: the step that computed the tokens has completed.
  void Publish(BatchRow row, std::span<const std::int32_t> tokens, std::vector<PageKey>* keys,
               std::uint32_t computed_tokens);
  // Holds until the row is freed; rows start with publishing on.
  void SetPublish(BatchRow row, bool enabled);

  // The logits of token `tokens` - 1 of the row were finite, in the step that completed last: every
  // full page that they read all of is proven, one of a window group that begins before the window
  // is not. A page that the row has adopted (Publish) counts from the first step on that was
  // launched afterwards. REQUIRES: the row has pages for these tokens, at least one.
  void SetProven(BatchRow row, std::uint32_t tokens);
  // The beginning of the row that cannot be why its next logits are not finite: what SetProven and
  // the match say, up to a page adopted since that is not proven.
  std::uint32_t proven_tokens(BatchRow row) const;

  // Gives back the pages of window groups that no token at or after `computed_tokens` reads; of a
  // row that publishes, none from the last published one on, which its next page continues. They
  // stay hittable as those of a freed row do. No step in flight needs them, so they are not held. A
  // row that gives pages up unpublished does not publish any more. REQUIRES: the steps that
  // computed the tokens have completed.
  void ReleaseOutsideWindow(BatchRow row, std::uint32_t computed_tokens);

  // The empty row `child` shares the full pages of `parent` within [0, computed_tokens) and gets a
  // queued copy of the rest, in each group. RESOURCE_EXHAUSTED, having done nothing, without pages
  // for the copies. REQUIRES: the parent has the pages that tokens from computed_tokens on read;
  // the child has none.
  absl::Status Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens);

  // Gives all pages of the row back, last page first, and forgets the row's scope. Copies into its
  // pages that were not taken yet are cancelled. A row without pages may be freed.
  void Free(BatchRow row);
  // The same, but first publishes the full pages of [0, computed_tokens) that have `keys`, and
  // leaves the tail page findable as the beginning of a page (a partial child of the last full one)
  // that later matches may copy from.
  void FreeKeepingTail(BatchRow row, std::span<const std::int32_t> tokens,
                       std::span<const PageKey> keys, std::uint32_t computed_tokens);

  // Frees the row after a non-finite flag. From token `first_token` on, the pages from the first
  // one that is not proven, and all that continue them, stop being findable, those that windows
  // have let go as far as `tokens` have `keys`; as soon as no other row refers to them they are
  // quarantined: a later step clears them (TakeClears) before they can be handed out again.
  void Invalidate(BatchRow row, std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                  std::uint32_t first_token);

  // The same for a history whose row has ended before a step shows that what it computed is not
  // finite: its pages stop being findable. Before the CompleteStep that says so.
  void Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                  std::span<const PageKey> keys, std::uint32_t first_token);

  // Fills the step arrays, those of one group after the other: cache_lengths of the scheduled rows,
  // 0 for the others, and the three maxima. REQUIRES: every row is scheduled once, with at least
  // one new token, and holds the pages that these tokens read and write, private and unpublished
  // where it writes. CHECKs it.
  std::span<const KvStepInputs> PrepareStep(std::span<const RowStep> rows);

  // Work for the runner before the next forward pass: clears first, then copies, in this order, as
  // a copy may read what an earlier one wrote. The lists are emptied by TakeCopies and TakeClears;
  // sources stay referenced and cleared pages quarantined until CompleteStep() says that the step
  // has run.
  //
  // A step is in flight from its PrepareStep to its CompleteStep; the oldest completes first. Work
  // belongs to the step that is prepared next; with no more than one step in flight it may also be
  // taken after PrepareStep. A page that a row lets go of while a step in flight names it is held:
  // it may stay or become findable, but is not handed out before every step launched until then has
  // completed. `is_poisoned`: the completing step wrote NaN or infinity into a row that has ended
  // meanwhile; of what is held, the pages that steps in flight write are quarantined as after
  // Invalidate. Pages that were published before stay: Invalidate.
  std::vector<PageCopy> TakeCopies();
  std::vector<BlockId> TakeClears();
  void CompleteStep(bool is_poisoned = false);
  std::uint32_t steps_in_flight() const;
  // Whether copies or clears wait to be taken. Quarantined pages come back only through a step, so
  // an idle engine runs one without rows when this is true.
  bool has_step_work() const;

  // Whether the common start of a page is reused by copying it: from the next Match and the next
  // FreeKeepingTail on. What was kept before stays.
  void SetPartialPageReuse(bool enabled);

  // Nothing that is cached now is found any more, nor what live rows hold: they publish no more.
  FlushCounts Flush();

  std::uint32_t available_pages() const;  // free + cached
  // Grows whenever a page becomes available or findable. What found no pages finds none as long as
  // it stays: each page that another takes makes at most as much room for it as it takes away.
  std::uint64_t num_changes() const;
  // Over all groups.
  std::uint32_t pages_of(BatchRow row) const;
  std::uint32_t private_pages_of(BatchRow row) const;  // referenced by this row alone
  // The tokens, from the first on, that the row has had pages for in every group.
  std::uint32_t reserved_tokens(BatchRow row) const;
  std::uint32_t num_groups() const;
  const PageDemand& demand() const;
  std::uint32_t page_size() const;
  std::uint32_t usable_pages() const;
  const HashKey& hash_key() const;
  CacheStats stats() const;
  // Entry i is page i + 1. O(pages + rows * columns).
  std::vector<PageUse> DescribePages() const;

  // Proves I1 to I11 in O(pages + rows * columns). Called by AdminService.CheckIntegrity and by
  // every randomised test.
  absl::Status CheckIntegrity() const;

 private:
  friend struct CacheManagerPeer;

  struct State;
  explicit CacheManager(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quire::cache
