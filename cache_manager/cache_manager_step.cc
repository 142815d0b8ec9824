// The arrays and the page work of steps, and what stays held while they are in flight.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache_manager/cache_manager_state.h"

namespace quire::cache {

std::span<const KvStepInputs> CacheManager::PrepareStep(std::span<const RowStep> rows) {
  State& state = *state_;
  for (const BatchRow row : state.scheduled) {
    for (LookupTable& table : state.tables) table.SetLength(row, 0);
  }
  state.scheduled.clear();
  ++state.step;
  state.in_flight.push_back(std::exchange(state.taken, {}));
  std::uint32_t max_seq_length = 0, max_cache_length = 0, max_history_length = 0;
  for (const RowStep& step : rows) {
    state.Schedule(step);
    max_seq_length = std::max(max_seq_length, step.new_tokens);
    max_cache_length = std::max(max_cache_length, step.cache_length + step.new_tokens);
    max_history_length = std::max(max_history_length, step.cache_length);
  }
  for (KvStepInputs& inputs : state.inputs) {
    inputs.max_seq_length = max_seq_length;
    inputs.max_cache_length = max_cache_length;
    inputs.max_history_length = max_history_length;
  }
  return state.inputs;
}

std::vector<PageCopy> CacheManager::TakeCopies() {
  std::vector<PageCopy> copies = state_->pending_copies;
  state_->pending_copies.clear();
  std::vector<PageCopy>& taken = state_->taken.copies;
  taken.insert(taken.end(), copies.begin(), copies.end());
  return copies;
}

std::vector<BlockId> CacheManager::TakeClears() {
  std::size_t& num_taken = state_->num_clears_taken;
  if (state_->pool.num_quarantined() == num_taken) return {};
  const std::vector<BlockId> all = state_->pool.quarantined_pages();
  std::vector<BlockId> clears(all.begin() + static_cast<std::ptrdiff_t>(num_taken), all.end());
  num_taken = all.size();
  std::vector<BlockId>& taken = state_->taken.clears;
  taken.insert(taken.end(), clears.begin(), clears.end());
  return clears;
}

void CacheManager::CompleteStep(bool is_poisoned) {
  std::vector<StepWork>& in_flight = state_->in_flight;
  // The rows that it poisoned may have ended after later steps were launched.
  for (const StepWork& work : in_flight) {
    if (is_poisoned) state_->PoisonHeld(work);
  }
  if (!in_flight.empty()) {
    StepWork work = std::move(in_flight.front());
    in_flight.erase(in_flight.begin());
    state_->Release(work);
  }
  // With one step at a time its work may also be taken after PrepareStep.
  if (in_flight.empty()) state_->Release(state_->taken);
}

std::uint32_t CacheManager::steps_in_flight() const {
  return static_cast<std::uint32_t>(state_->in_flight.size());
}

bool CacheManager::has_step_work() const {
  return !state_->pending_copies.empty() ||
         state_->pool.num_quarantined() > state_->num_clears_taken;
}

void CacheManager::State::Schedule(const RowStep& row) {
  const std::uint32_t end = row.cache_length + row.new_tokens;
  QUIRE_CHECK(std::exchange(row_state(row.row).last_step, step) != step);
  QUIRE_CHECK(row.new_tokens > 0 && end > row.cache_length);
  for (std::size_t group = 0; group < num_groups(); ++group) {
    LookupTable& table = tables[group];
    QUIRE_CHECK(table.first_column(row.row) <= FirstRead(group, row.cache_length));
    for (std::uint32_t column = row.cache_length / page_size; column < CeilDiv(end, page_size);
         ++column) {
      const BlockId page = table.page(row.row, column);
      QUIRE_CHECK(pool.requests(page) == 1 && pool.node(page) == kNoNode);
    }
    table.SetLength(row.row, row.cache_length);
  }
  scheduled.push_back(row.row);
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

void CacheManager::State::PoisonHeld(const StepWork& work) {
  for (const BlockId page : work.held) {
    const NodeId node = pool.node(page);
    if (node != kNoNode && prefixes.is_full(node)) continue;
    if (node != kNoNode) prefixes.DropSubtree(node);
    pool.MarkPoisoned(page);
  }
}

// Rows are held tail first. Their heads are released first, so that a page finds its place in the
// eviction order directly before the page that it continues, which is cached by then; the other way
// round each page would go over all those before it. Copies read ends of histories, and come last.
void CacheManager::State::Release(StepWork& work) {
  for (auto held = work.held.rbegin(); held != work.held.rend(); ++held) DropTransfer(*held);
  for (const PageCopy& copy : work.copies) DropTransfer(copy.source);
  for (const BlockId page : work.clears) pool.FreeQuarantined(page);
  num_clears_taken -= work.clears.size();
  work.copies.clear();
  work.held.clear();
  work.clears.clear();
}

}  // namespace quire::cache
