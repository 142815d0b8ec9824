#pragma once

// The facade of the KV cache. It tracks which batch row holds which pages and which prefixes are
// shared, and it fills the arrays that kernels read. It handles token ids, rows and page ids, but
// neither requests nor the bytes of pages. An operation that needs a page copied or cleared queues
// that work, and the runner does it before the next step.
//
//   match = cache->Match(tokens, keys, root, limit);   changes nothing
//   cache->Attach(row, match, root);                   adds references
//   cache->Reserve(row, all_tokens, step_tokens);      allocates pages, all or nothing
//   cache->CountLookup(match, prompt_tokens);          once per request, after its admission
//   inputs = cache->PrepareStep(rows);                 lookup tables and lengths for the kernels
//   states = cache->state_inputs();                    slots of recurrent states, if there are any
//   clears, copies = cache->TakeClears(), TakeCopies() the runner executes both, then computes
//   cache->CompleteStep();                             the oldest step in flight has run
//   cache->Publish(row, tokens, &keys, computed);      full pages can be matched
//   cache->ReleaseOutsideWindow(row, computed);        frees pages that no later token reads
//   cache->Free(row);                                  published pages stay cached
//
// The layers of a model form one or more groups (CacheGroup) over one pool of pages of equal size.
// Column c of a row covers tokens [c * page_size, (c + 1) * page_size). In a group without window a
// row has a page in every column. In a window group a row keeps only the pages that its next tokens
// read, and its last published page.
//
// In a model with recurrent layers a row also has a slot for its states. A prefix can then be
// reused only up to a position for which the prefix cache has a snapshot of the states. In such a
// model at most one step is in flight.
//
// RowPages manages the pages of rows, RowStates their slots, PrefixIndex the published pages, and
// StepWork the copies and clears of steps. FiniteProof records which pages contain only finite
// values.
//
// Place:      above the pool and the prefix cache; below the scheduler.
// Invariants: I1 to I11 and I13 to I16 of docs/kv_cache.md, and the invariants of the five classes
//             above. See CheckIntegrity().
// Threads:    engine thread only. HashPages (page_hash.h) may run on any thread.
// Lifetime:   must outlive every step that reads its arrays.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/keyed_hash.h"
#include "base/strong_id.h"
#include "cache_manager/cache_layout.h"
#include "cache_manager/cache_manager_options.h"
#include "cache_manager/finite_proof.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/pool/lookup_table.h"
#include "cache_manager/pool/page_demand.h"
#include "cache_manager/pool/state_pool.h"
#include "cache_manager/prefix/page_hash.h"
#include "cache_manager/prefix/prefix_cache.h"
#include "cache_manager/prefix_index.h"
#include "cache_manager/prefix_match.h"
#include "cache_manager/row_pages.h"
#include "cache_manager/row_states.h"
#include "cache_manager/step_work.h"
#include "cache_manager/views/kv_step_inputs.h"
#include "cache_manager/views/state_step_inputs.h"

namespace quire::cache {

struct CacheStats {
  std::uint32_t usable_pages = 0;  // without the null page
  std::uint32_t free_pages = 0;
  std::uint32_t cached_pages = 0;    // unreferenced, but published
  std::uint32_t used_pages = 0;      // all others
  std::uint64_t hit_tokens = 0;      // counted by CountLookup
  std::uint64_t queried_tokens = 0;  // counted by CountLookup
  std::uint64_t evicted_pages = 0;   // pages unpublished by eviction, Flush or Invalidate
  // Number of pages whose key was already taken by a page with another token history. Counted by
  // CountLookup and Publish.
  std::uint64_t collisions = 0;
  // Number of prompt tokens in published pages that were computed again for lack of a snapshot of
  // the recurrent states. Counted by CountLookup.
  std::uint64_t tokens_without_state = 0;
  std::uint32_t state_slots = 0;           // without the null slot; 0: the model has no states
  std::uint32_t free_state_slots = 0;      // neither written nor read, and no snapshot
  std::uint32_t live_state_slots = 0;      // written by rows
  std::uint32_t snapshot_state_slots = 0;  // slots of prefix nodes
};

// The use of one page, as DescribePages reports it.
struct PageUse {
  // A page is free, cached or used exactly if CacheStats counts it as such.
  enum class Kind : std::uint8_t { kFree, kCached, kUsed } kind = Kind::kFree;
  // Number of rows that reference the page. A used page without rows is quarantined, or a copy or a
  // step in flight still uses it.
  std::uint32_t num_rows = 0;
  BatchRow row{0};  // of these rows the one with the highest index; 0 if there is none
};

class CacheManager {
 public:
  // Returns INVALID_ARGUMENT for invalid options, and RESOURCE_EXHAUSTED if the lookup tables do
  // not fit into memory.
  static absl::StatusOr<std::unique_ptr<CacheManager>> Create(const CacheManagerOptions& options);
  // Returns an upper bound, in bytes, of the host memory of the prefix index: tokens, keys and
  // nodes of every page. It grows with geometry.num_blocks. REQUIRES: Create accepts the options.
  static std::int64_t PrefixIndexBytes(const CacheManagerOptions& options);
  CacheManager(const CacheManager&) = delete;
  CacheManager& operator=(const CacheManager&) = delete;

  // Returns the longest prefix of `tokens`, of at most `max_tokens` tokens, that the cache can
  // reuse. `max_tokens` must exclude every token whose logits the caller needs, and at least the
  // last token. `root` is the hash of the sharing scope (HashRoot). `keys` are the keys of the full
  // pages of `tokens` under this root. Without `may_copy` the match has only full pages. Adds no
  // references and counts nothing.
  PrefixMatch Match(std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                    const Hash128& root, std::uint32_t max_tokens, bool may_copy = true) const {
    return index_.Match(tokens, keys, root, max_tokens, may_copy);
  }
  // Makes the matched pages (possibly none) the first columns of `row`. The row will publish under
  // `root`. If the match has partial sources, one page per group is allocated, and a copy
  // (PageCopy) into it is queued. The sources stay referenced until the copy has completed. With
  // states, the row gets a slot, and the state of the match is not evicted before the row's first
  // step has completed. The steps that compute the first `prompt_tokens` tokens may then write
  // snapshots for later requests (RowStates). If too few pages or slots are available, returns
  // RESOURCE_EXHAUSTED. If the match is outdated, returns ABORTED. Neither error changes anything.
  // REQUIRES: the row has no pages.
  absl::Status Attach(BatchRow row, const PrefixMatch& match, const Hash128& root,
                      std::uint32_t prompt_tokens = 0);
  // Adds a lookup of `queried_tokens` tokens to the hit statistics. The caller counts only the
  // first successful admission of a request.
  void CountLookup(const PrefixMatch& match, std::uint32_t queried_tokens) {
    index_.CountLookup(match, queried_tokens);
  }

  // Allocates the pages that the row lacks: for `total_tokens` tokens in groups without window, and
  // for the first `step_tokens` of them in window groups. If too few pages are available for all
  // groups together, allocates and evicts nothing and returns RESOURCE_EXHAUSTED "needs N pages, M
  // available". With states, a row without a slot gets one. If no slot is available, no page is
  // allocated either. REQUIRES: step_tokens <= total_tokens <= max_context_tokens.
  absl::Status Reserve(BatchRow row, std::uint32_t total_tokens, std::uint32_t step_tokens);
  absl::Status Reserve(BatchRow row, std::uint32_t tokens) { return Reserve(row, tokens, tokens); }

  // Publishes the full pages of the row within [0, computed_tokens). `tokens` are the row's tokens.
  // Missing keys are appended to `keys`. If a page with the same history is published already, the
  // row adopts that page and drops its own. The row stops publishing in these cases:
  //   - prefix caching is off, the row was never attached, or SetPublish disabled publishing;
  //   - a page is poisoned, awaits a copy, or was released before it was published;
  //   - the key of a page belongs to another history;
  //   - the row's page is proven finite, and the published page that it would adopt is not;
  //   - Flush or Invalidate removed the node of one of its pages;
  //   - the node table of the prefix cache is full (PrefixCache::MakeRoom).
  // REQUIRES: the step that computed the tokens has completed.
  void Publish(BatchRow row, std::span<const std::int32_t> tokens, std::vector<PageKey>* keys,
               std::uint32_t computed_tokens);
  // Enables or disables Publish until the row is freed. Enabled by default.
  void SetPublish(BatchRow row, bool enabled) { index_.SetPublish(row, enabled); }

  // Reports that the last completed step computed finite logits for token `tokens` - 1 of the row.
  // Every full page that this token attended to completely is then proven finite. A page of a
  // window group is not proven if it begins before the token's window. A page that the row adopted
  // (Publish) is proven only by steps launched after the adoption. REQUIRES: the row has pages for
  // these tokens; tokens > 0.
  void SetProven(BatchRow row, std::uint32_t tokens);
  // Returns the number of leading tokens whose K and V are proven finite. These tokens cannot be
  // the cause of non-finite logits. SetProven and Attach raise it. Adopting a page that is not
  // proven lowers it.
  std::uint32_t proven_tokens(BatchRow row) const { return proof_.proven_tokens(row); }

  // Frees the pages of window groups that no token at or after `computed_tokens` reads. A row that
  // can publish keeps its last published page and all later ones, because the next page to publish
  // continues them. Released pages stay cached if they are published. A row that releases
  // unpublished pages publishes no more. REQUIRES: the steps that computed the tokens have
  // completed.
  void ReleaseOutsideWindow(BatchRow row, std::uint32_t computed_tokens) {
    rows_.ReleaseOutsideWindow(row, computed_tokens, index_.FirstKeptColumn(row));
  }

  // In each group, makes the empty row `child` share the full pages of `parent` within [0,
  // computed_tokens). If a partial page follows them, queues a copy of it. If too few pages or
  // slots are available, changes nothing and returns RESOURCE_EXHAUSTED. With states, the next
  // steps of both rows read the same slot, and each row writes a slot of its own. REQUIRES: the
  // parent has every page that tokens at or after computed_tokens read; the parent's state is the
  // one after exactly computed_tokens tokens; the child has no pages.
  absl::Status Fork(BatchRow parent, BatchRow child, std::uint32_t computed_tokens);

  // Drops the row's reference to each of its pages, the last page first, and forgets the row's
  // root. Queued copies into pages that become unreferenced are cancelled. The row may be empty.
  void Free(BatchRow row);
  // Publishes the full pages of [0, computed_tokens) that have `keys`, then frees the row. A
  // partial page after them becomes a partial child in the prefix cache, from which later matches
  // copy. With states, the row's slot becomes the snapshot after computed_tokens tokens. A partial
  // page is then published only together with this snapshot, and only if both are proven finite.
  void FreeKeepingTail(BatchRow row, std::span<const std::int32_t> tokens,
                       std::span<const PageKey> keys, std::uint32_t computed_tokens);

  // Frees the row after a step reported non-finite values. Finds the first page of the row's
  // history, at or after `first_token`, that is not proven finite. Unpublishes that page and every
  // page that continues it, and removes the snapshots of the history that are not proven finite.
  // Uses `tokens` and `keys` to find pages that the row's windows have released. The unpublished
  // pages that the row holds are quarantined as soon as no row references them. A later step clears
  // them (TakeClears) before they are allocated again.
  void Invalidate(BatchRow row, std::span<const std::int32_t> tokens, std::span<const PageKey> keys,
                  std::uint32_t first_token);
  // Unpublishes the same pages and removes the same snapshots for a history whose row has already
  // been freed. Must be called before CompleteStep(true) for the step that reported the non-finite
  // values. That CompleteStep quarantines the pages.
  void Invalidate(const Hash128& root, std::span<const std::int32_t> tokens,
                  std::span<const PageKey> keys, std::uint32_t first_token);

  // Fills state_inputs() and the step inputs of each group, and returns the latter. The step inputs
  // contain the cache lengths of the scheduled rows, 0 for all other rows, and the three maxima of
  // KvStepInputs over the scheduled rows. REQUIRES (checked): every row is scheduled once, with at
  // least one new token; the row holds the pages that these tokens read and write; the pages that
  // they write are private and unpublished.
  std::span<const KvStepInputs> PrepareStep(std::span<const RowStep> rows);
  const StateStepInputs& state_inputs() const { return states_.inputs(); }

  // TakeClears and TakeCopies return the work that the runner does before the next forward pass,
  // and remove it from the queue. The runner does the clears first and then the copies in order,
  // because a copy may read what an earlier copy wrote. Sources of copies stay referenced and
  // cleared pages stay quarantined until the step has completed.
  //
  // A step is in flight from its PrepareStep to its CompleteStep; the oldest completes first. The
  // work belongs to the step that is prepared next. If at most one step is in flight, the work may
  // also be taken after PrepareStep. A page that a row frees while a step in flight uses it is
  // pinned. A pinned page may be published, but it is not allocated again before all steps that
  // were in flight when it was freed have completed.
  //
  // `is_poisoned` means that the completing step wrote NaN or infinity for a row that was freed
  // after the launch. Every pinned page, except a published full page, is then quarantined when its
  // last reference is dropped. The caller has already unpublished the full pages that may contain
  // these values.
  std::vector<PageCopy> TakeCopies() { return step_work_.TakeCopies(); }
  std::vector<BlockId> TakeClears() { return step_work_.TakeClears(); }
  void CompleteStep(bool is_poisoned = false);
  std::uint32_t steps_in_flight() const { return step_work_.num_in_flight(); }
  // True if copies or clears are queued. Only a step clears quarantined pages and makes them free.
  bool has_step_work() const { return step_work_.has_work(); }

  // Sets whether a common prefix within a page is reused by copying it. Applies to later calls of
  // Match and FreeKeepingTail.
  void SetPartialPageReuse(bool enabled) { index_.SetPartialPageReuse(enabled); }

  // Unpublishes all pages. Rows that have pages publish no more.
  FlushCounts Flush() { return index_.Flush(); }

  std::uint32_t available_pages() const { return pool_.available(); }  // free + cached
  // Returns a counter that grows whenever a page or a slot becomes available or a page is
  // published. While the counter is unchanged, an attach or a reservation that failed for lack of
  // pages or slots would fail again.
  std::uint64_t num_changes() const {
    return pool_.num_returned() + state_pool_.num_returned() + prefixes_.num_published();
  }
  bool has_states() const { return states_.is_enabled(); }
  // Returns how many of the row's next `tokens` prompt tokens one step may compute. A step that
  // computed more would miss a snapshot that other requests can use. Returns `tokens` if the row
  // publishes nothing.
  std::uint32_t LimitChunk(BatchRow row, std::uint32_t tokens) {
    return has_states() && index_.CanPublish(row) ? states_.LimitChunk(row, tokens) : tokens;
  }
  std::uint32_t available_state_slots() const { return state_pool_.available(); }
  // Returns the maximum number of slots that `children` forks of one row allocate.
  std::uint32_t SlotsForForks(std::uint32_t children) const {
    return has_states() ? children + 1 : 0;
  }
  // Number of pages of the row in all groups.
  std::uint32_t num_pages(BatchRow row) const { return rows_.num_pages(row); }
  // Number of pages that only this row references.
  std::uint32_t num_private_pages(BatchRow row) const { return rows_.num_private_pages(row); }
  // Number of leading tokens whose columns the row has reserved in every group. Includes columns
  // whose pages a window group has released or never had.
  std::uint32_t reserved_tokens(BatchRow row) const {
    return rows_.reserved_columns(row) * page_size();
  }
  std::uint32_t num_groups() const { return static_cast<std::uint32_t>(layout_.num_groups()); }
  const PageDemand& demand() const { return demand_; }
  std::uint32_t page_size() const { return layout_.page_size(); }
  std::uint32_t usable_pages() const { return pool_.usable(); }
  const HashKey& hash_key() const { return hash_key_; }
  CacheStats stats() const;
  // Returns the use of every page except the null page. Entry i describes page i + 1. O(pages +
  // rows * columns).
  std::vector<PageUse> DescribePages() const;

  // Checks I1 to I11 and I13 to I16. O(pages + rows * columns). Called by
  // AdminService.CheckIntegrity and by every randomized test.
  absl::Status CheckIntegrity() const;

 private:
  friend struct CacheManagerPeer;

  CacheManager(const CacheManagerOptions& options, std::vector<LookupTable> tables);

  // Attaches the snapshot that the row's last step wrote to its prefix node. Frees the snapshot if
  // that node does not exist.
  void PublishSnapshot(BatchRow row);
  absl::Status CheckReferences() const;

  const HashKey hash_key_;
  const CacheLayout layout_;
  const PageDemand demand_;
  BlockPool pool_;
  StatePool state_pool_;
  PrefixCache prefixes_;
  StepWork step_work_;
  RowPages rows_;
  RowStates states_;
  FiniteProof proof_;
  PrefixIndex index_;
};

}  // namespace quire::cache
