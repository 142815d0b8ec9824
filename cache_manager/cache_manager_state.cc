#include "cache_manager/cache_manager_state.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {

RowState& CacheManager::State::row_state(BatchRow row) {
  QUIRE_CHECK(row.value() < rows.size());
  return rows[row.value()];
}

// When the page was the target of a copy that nobody took yet, the copy has no purpose any more,
// and the page may soon belong to another row.
void CacheManager::State::SettleAbandoned(BlockId page) {
  if (pending_copies.empty() || pool.is_referenced(page)) return;
  const auto copy =
      std::ranges::find_if(pending_copies, [&](const PageCopy& c) { return c.target == page; });
  if (copy == pending_copies.end()) return;
  const BlockId source = copy->source;
  pending_copies.erase(copy);
  DropTransfer(source);
}

void CacheManager::State::DropRequest(BlockId page) {
  const NodeId node = pool.node(page);
  const bool becomes_cached =
      node != kNoNode && pool.requests(page) == 1 && pool.transfers(page) == 0;
  pool.DropRequest(page, becomes_cached ? prefixes.EvictedBefore(node) : kNullBlock);
  SettleAbandoned(page);
}

void CacheManager::State::DropTransfer(BlockId page) {
  const NodeId node = pool.node(page);
  const bool becomes_cached =
      node != kNoNode && pool.requests(page) == 0 && pool.transfers(page) == 1;
  pool.DropTransfer(page, becomes_cached ? prefixes.EvictedBefore(node) : kNullBlock);
  SettleAbandoned(page);
}

void CacheManager::State::QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows) {
  pool.AddTransfer(source);
  pending_copies.push_back({.source = source, .target = target, .num_rows = num_rows});
}

bool CacheManager::State::AwaitsCopy(BlockId page) const {
  return std::ranges::any_of(pending_copies, [&](const PageCopy& c) { return c.target == page; });
}

bool CacheManager::State::IsBeingCopied(BlockId page) const {
  return std::ranges::any_of(in_flight, [&](const StepWork& work) {
    return std::ranges::any_of(work.copies, [&](const PageCopy& c) { return c.target == page; });
  });
}

void CacheManager::State::Hold(BlockId page) {
  pool.AddTransfer(page);
  in_flight.back().held.push_back(page);
}

void CacheManager::State::Release(StepWork& work, bool spoil_held) {
  for (const PageCopy& copy : work.copies) DropTransfer(copy.source);
  for (const BlockId page : work.held) {
    if (spoil_held) {
      if (pool.node(page) != kNoNode) prefixes.DropSubtree(pool.node(page));
      pool.MarkSpoiled(page);
    }
    DropTransfer(page);
  }
  for (const BlockId page : work.clears) pool.FreeQuarantined(page);
  num_clears_taken -= work.clears.size();
  work.copies.clear();
  work.held.clear();
  work.clears.clear();
}

void CacheManager::State::FreeRow(BatchRow row) {
  RowState& state = row_state(row);
  const bool is_in_flight = IsInFlight(row);
  // Last column first, so that the tail of a sequence is evicted before its head.
  while (num_columns(row) > 0) {
    const BlockId page = table.PopBack(row);
    // No step that was launched names a page that still awaits its copy.
    if ((is_in_flight || IsBeingCopied(page)) && !AwaitsCopy(page)) Hold(page);
    DropRequest(page);
  }
  table.SetLength(row, 0);
  state = RowState{};
}

bool CacheManager::State::CanPublish(BatchRow row) {
  RowState& state = row_state(row);
  if (!options.prefix_caching || !state.is_attached || !state.may_publish) return false;
  // Nodes go from the end of a path, so the last one tells whether any is gone.
  if (state.num_published > 0 && pool.node(table.page(row, state.num_published - 1)) == kNoNode) {
    state.is_blocked = true;
  }
  return !state.is_blocked;
}

// The node that a page at `column` continues; kNoNode when that would be a root not known yet.
NodeId CacheManager::State::NodeBefore(BatchRow row, std::uint32_t column) const {
  if (column == 0) return prefixes.FindRoot(rows[row.value()].root);
  return pool.node(table.page(row, column - 1));
}

// Other rows that share the unpublished page adopt the twin too: else one of them could hold a
// published page without holding its prefix.
void CacheManager::State::Adopt(BatchRow row, std::uint32_t column, BlockId twin) {
  const BlockId own = table.page(row, column);
  const auto replace = [&](BatchRow holder) {
    if (IsInFlight(holder)) Hold(own);
    pool.AddRequest(twin);
    table.Replace(holder, column, twin);
    DropRequest(own);
  };
  if (pool.requests(own) == 1) return replace(row);
  for (std::uint32_t other = 0; other < rows.size(); ++other) {
    const BatchRow holder{other};
    if (column < num_columns(holder) && table.page(holder, column) == own) replace(holder);
  }
}

bool CacheManager::State::PublishColumn(BatchRow row, std::uint32_t column,
                                        std::span<const std::int32_t> page_tokens,
                                        const PageKey& key) {
  const BlockId page = table.page(row, column);
  if (pool.node(page) != kNoNode) return true;  // a row that shares it was first
  if (pool.is_spoiled(page) || AwaitsCopy(page)) return false;
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::Child twin = prefixes.FindChild(parent, key, page_tokens);
  if (twin.collision) {
    ++collisions;
    return false;
  }
  if (twin.node != kNoNode) {
    Adopt(row, column, prefixes.page(twin.node));
    prefixes.Touch(twin.node);
    return true;
  }
  prefixes.AddChild(parent != kNoNode ? parent : prefixes.AddRoot(row_state(row).root), key,
                    page_tokens, page);
  return true;
}

void CacheManager::State::PublishColumns(BatchRow row, std::span<const std::int32_t> tokens,
                                         std::span<const PageKey> keys, std::uint32_t full_pages) {
  RowState& state = row_state(row);
  while (state.num_published < full_pages && !state.is_blocked) {
    const std::uint32_t column = state.num_published;
    const auto page_tokens = tokens.subspan(std::size_t{column} * page_size, page_size);
    if (PublishColumn(row, column, page_tokens, keys[column])) {
      ++state.num_published;
    } else {
      state.is_blocked = true;
    }
  }
}

void CacheManager::State::KeepTail(BatchRow row, std::span<const std::int32_t> tokens,
                                   std::uint32_t computed_tokens) {
  const std::uint32_t column = computed_tokens / page_size;
  const std::uint32_t filled = computed_tokens % page_size;
  if (!partial_page_reuse || filled < page_size / kMinPartialShare) return;
  if (row_state(row).num_published != column) return;
  const BlockId page = table.page(row, column);
  if (pool.requests(page) != 1 || pool.node(page) != kNoNode || pool.is_spoiled(page)) return;
  if (AwaitsCopy(page)) return;
  const auto held = tokens.subspan(std::size_t{column} * page_size, filled);
  const NodeId parent = NodeBefore(row, column);
  const PrefixCache::Beginning known = prefixes.FindBeginning(parent, held);
  if (known.rows == filled) return prefixes.Touch(known.node);
  prefixes.AddPartialChild(parent != kNoNode ? parent : prefixes.AddRoot(row_state(row).root), held,
                           page);
}

absl::Status CacheManager::State::CheckReferences() const {
  std::vector<std::uint32_t> requests(pool.num_blocks());
  std::vector<std::uint32_t> transfers(pool.num_blocks());
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    for (const std::uint32_t page : table.columns(BatchRow{row})) {
      if (page >= pool.num_blocks()) {
        return absl::InternalError(
            absl::StrCat("row ", row, " names page ", page, " of ", pool.num_blocks()));
      }
      ++requests[page];
    }
  }
  for (const PageCopy& copy : pending_copies) ++transfers[copy.source.value()];
  const auto count = [&](const StepWork& work) {
    for (const PageCopy& copy : work.copies) ++transfers[copy.source.value()];
    for (const BlockId page : work.held) ++transfers[page.value()];
  };
  count(taken);
  for (const StepWork& work : in_flight) count(work);
  for (std::uint32_t page = 1; page < pool.num_blocks(); ++page) {
    const std::uint32_t counted = pool.requests(BlockId{page});
    const std::uint32_t copying = pool.transfers(BlockId{page});
    if (counted != requests[page] || copying != transfers[page]) {
      return absl::InternalError(absl::StrCat(
          "page ", page, " counts ", counted, " requests and ", copying, " transfers, but ",
          requests[page], " columns and ", transfers[page], " copies and steps in flight name it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CacheManager::State::CheckRow(BatchRow row) const {
  NodeId before = kNoNode;
  bool has_ended = false;
  for (std::uint32_t column = 0; column < num_columns(row); ++column) {
    const NodeId node = pool.node(table.page(row, column));
    if (node == kNoNode) {
      has_ended = true;
      continue;
    }
    const NodeId parent = prefixes.parent(node);
    const bool continues = column == 0 ? prefixes.is_root(parent, rows[row.value()].root)
                                       : !has_ended && parent == before;
    if (!continues) {
      return absl::InternalError(absl::StrCat("row ", row.value(), " column ", column,
                                              " does not continue the prefix before it"));
    }
    before = node;
  }
  return absl::OkStatus();
}

absl::Status CacheManager::State::CheckStepWork() const {
  std::vector<BlockId> clears;
  for (const StepWork& work : in_flight) {
    clears.insert(clears.end(), work.clears.begin(), work.clears.end());
    for (const PageCopy& copy : work.copies) {
      if (pool.is_referenced(copy.target)) continue;
      return absl::InternalError(absl::StrCat("page ", copy.target.value(),
                                              " was let go while a step in flight copies into it"));
    }
  }
  clears.insert(clears.end(), taken.clears.begin(), taken.clears.end());
  const std::vector<BlockId> quarantined = pool.quarantined_pages();
  if (clears.size() != num_clears_taken || clears.size() > quarantined.size() ||
      !std::equal(clears.begin(), clears.end(), quarantined.begin())) {
    return absl::InternalError(absl::StrCat(clears.size(),
                                            " pages are being cleared that are not the first of ",
                                            quarantined.size(), " quarantined ones"));
  }
  for (const PageCopy& copy : pending_copies) {
    if (!pool.is_referenced(copy.target) || copy.num_rows == 0 || copy.num_rows > page_size) {
      return absl::InternalError(absl::StrCat("a copy of ", copy.num_rows, " rows into page ",
                                              copy.target.value(), " has no purpose"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
