#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/strong_id.h"
#include "cache_manager/pool/block_pool.h"
#include "cache_manager/row_pages.h"
#include "cache_manager/step_work.h"

namespace quire::cache {

// Records which pages are proven finite. A page is proven finite if a step read all its values and
// the step's logits were finite. Then the page contains neither NaN nor infinity. If the logits of
// a row are not finite, only pages after the proven tokens of the row can be the cause, and only
// these are invalidated.
//
// Adoption: Publish may replace a page of a row by a published page with the same tokens. If the
// published page is not proven, the row's proof ends before that page. Steps launched before the
// replacement read the old page, so their logits prove nothing about the new one.
//
// Place:      above RowPages, below PrefixIndex. BlockPool stores the flag of each page.
// Invariants: a row has reserved the columns of its proven tokens. In groups without a window,
//             every page that is full of proven tokens is proven finite. See CheckIntegrity().
// Threads:    engine thread only.
// Lifetime:   destroyed before the objects passed to the constructor.
class FiniteProof {
 public:
  FiniteProof(BlockPool* pool, const RowPages* rows, const StepWork* step_work);

  // Records that the row was attached to pages whose first `proven_tokens` tokens are proven.
  void Attach(BatchRow row, std::uint32_t proven_tokens);
  // Records that the row `child` was forked and shares the first `shared_tokens` tokens of
  // `parent`.
  void Fork(BatchRow parent, BatchRow child, std::uint32_t shared_tokens);
  void ForgetRow(BatchRow row);

  // See CacheManager::SetProven and proven_tokens.
  void SetProven(BatchRow row, std::uint32_t tokens);
  std::uint32_t proven_tokens(BatchRow row) const;
  // `pages` are the pages of the row's last, partly filled column, one per group. If the row's
  // proof covers `computed_tokens`, marks these pages proven, except a page that begins before the
  // window of the last proven token.
  void SetTailProven(BatchRow row, std::uint32_t computed_tokens, std::span<const BlockId> pages);
  // Called before one of the row's pages in `column` is replaced by `page`.
  void OnReplace(BatchRow row, std::uint32_t column, BlockId page);

  // True if every page is proven finite. Null pages are ignored.
  bool AreProven(std::span<const BlockId> pages) const;
  // True if the row's pages of the column are proven finite in all groups. If the row has released
  // the column, examines `node_pages` instead, the pages of the prefix node for this column.
  bool IsColumnProven(BatchRow row, std::uint32_t column,
                      std::span<const BlockId> node_pages) const;
  // True if replacing the row's pages of the column by `pages` would replace a proven page by one
  // that is not proven.
  bool WouldLoseProof(BatchRow row, std::uint32_t column, std::span<const BlockId> pages) const;
  // `pages` is [columns, groups]. Returns the number of leading columns whose pages are all proven.
  // Pages before a group's window are not examined, because a row attached to all columns would not
  // hold them.
  std::uint32_t ProvenColumns(std::span<const BlockId> pages) const;

  absl::Status CheckIntegrity() const;

 private:
  friend struct FiniteProofPeer;

  struct RowProof {
    std::uint32_t proven_tokens = 0;
    // Pages from token `adopted_from` on were replaced by unproven pages after `adoption_step`
    // steps had been launched. The logits of those steps prove only tokens before `adopted_from`.
    // adoption_step is 0 if no page was replaced.
    std::uint32_t adopted_from = 0;
    std::uint64_t adoption_step = 0;
  };

  RowProof& at(BatchRow row);

  BlockPool* const pool_;
  const RowPages* const rows_;
  const StepWork* const step_work_;
  std::vector<RowProof> proofs_;  // by row
};

}  // namespace quire::cache
