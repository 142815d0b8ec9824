#include "cache_manager/step_work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::cache {

StepWork::StepWork(std::uint32_t max_rows, const CacheLayout* layout, BlockPool* pool,
                   PrefixCache* prefixes)
    : layout_(layout), pool_(pool), prefixes_(prefixes), last_step_(max_rows) {
  queued_copies_.reserve(max_rows * layout->num_groups());
  in_flight_.reserve(4);
}

void StepWork::QueueCopy(BlockId source, BlockId target, std::uint32_t num_rows) {
  pool_->AddTransfer(source);
  queued_copies_.push_back({.source = source, .target = target, .num_rows = num_rows});
}

void StepWork::CancelCopyInto(BlockId page) {
  if (queued_copies_.empty() || pool_->is_referenced(page)) return;
  const auto copy = std::ranges::find(queued_copies_, page, &PageCopy::target);
  if (copy == queued_copies_.end()) return;
  const BlockId source = copy->source;
  queued_copies_.erase(copy);
  DropTransfer(source);
}

bool StepWork::AwaitsCopy(BlockId page) const {
  return std::ranges::find(queued_copies_, page, &PageCopy::target) != queued_copies_.end();
}

bool StepWork::IsBeingCopied(BlockId page) const {
  return std::ranges::any_of(in_flight_, [&](const Step& step) {
    return std::ranges::find(step.copies, page, &PageCopy::target) != step.copies.end();
  });
}

std::vector<PageCopy> StepWork::TakeCopies() {
  std::vector<PageCopy> copies = queued_copies_;
  queued_copies_.clear();
  taken_.copies.insert(taken_.copies.end(), copies.begin(), copies.end());
  return copies;
}

std::vector<BlockId> StepWork::TakeClears() {
  if (pool_->num_quarantined() == num_clears_taken_) return {};
  const std::vector<BlockId> all = pool_->quarantined_pages();
  std::vector<BlockId> clears(all.begin() + static_cast<std::ptrdiff_t>(num_clears_taken_),
                              all.end());
  num_clears_taken_ = all.size();
  taken_.clears.insert(taken_.clears.end(), clears.begin(), clears.end());
  return clears;
}

void StepWork::Start() {
  ++num_started_;
  in_flight_.push_back(std::exchange(taken_, {}));
}

void StepWork::AddRow(BatchRow row) {
  QUIRE_CHECK(row.value() < last_step_.size());
  QUIRE_CHECK(std::exchange(last_step_[row.value()], num_started_) != num_started_);
}

void StepWork::Complete(bool is_poisoned) {
  // A row that this step poisoned may have ended after later steps were launched, so the pages
  // pinned by all steps are considered.
  for (const Step& step : in_flight_) {
    if (is_poisoned) PoisonPinned(step);
  }
  if (!in_flight_.empty()) {
    Step step = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    Release(step);
  }
  // A caller with one step at a time may take the work after the start of the step.
  if (in_flight_.empty()) Release(taken_);
}

void StepWork::Pin(BlockId page) {
  pool_->AddTransfer(page);
  in_flight_.back().pinned.push_back(page);
}

bool StepWork::IsInFlight(BatchRow row) const {
  return last_step_[row.value()] > num_completed();
}

void StepWork::ForgetRow(BatchRow row) {
  QUIRE_CHECK(row.value() < last_step_.size());
  last_step_[row.value()] = 0;
}

bool StepWork::has_work() const {
  return !queued_copies_.empty() || pool_->num_quarantined() > num_clears_taken_;
}

void StepWork::DropTransfer(BlockId page) {
  prefixes_->DropTransfer(page);
  CancelCopyInto(page);
}

void StepWork::PoisonPinned(const Step& step) {
  for (const BlockId page : step.pinned) {
    const NodeId node = pool_->node(page);
    if (node != kNoNode && prefixes_->is_full(node)) continue;
    if (node != kNoNode) prefixes_->DropSubtree(node);
    pool_->Poison(page);
  }
}

// Pages were pinned from the tail of a row to its head and are released from head to tail. A page
// is inserted into the eviction order just before its parent; releasing the parent first makes that
// O(1). Sources of copies are ends of histories and are released last.
void StepWork::Release(Step& step) {
  for (auto pinned = step.pinned.rbegin(); pinned != step.pinned.rend(); ++pinned) {
    DropTransfer(*pinned);
  }
  for (const PageCopy& copy : step.copies) DropTransfer(copy.source);
  for (const BlockId page : step.clears) pool_->FreeQuarantined(page);
  num_clears_taken_ -= step.clears.size();
  step.copies.clear();
  step.pinned.clear();
  step.clears.clear();
}

void StepWork::CountTransfers(std::span<std::uint32_t> transfers) const {
  for (const PageCopy& copy : queued_copies_) ++transfers[copy.source.value()];
  const auto count = [&](const Step& step) {
    for (const PageCopy& copy : step.copies) ++transfers[copy.source.value()];
    for (const BlockId page : step.pinned) ++transfers[page.value()];
  };
  count(taken_);
  for (const Step& step : in_flight_) count(step);
}

absl::Status StepWork::CheckIntegrity() const {
  std::vector<BlockId> clears;
  for (const Step& step : in_flight_) {
    clears.insert(clears.end(), step.clears.begin(), step.clears.end());
    for (const PageCopy& copy : step.copies) {
      if (pool_->is_referenced(copy.target)) continue;
      return absl::InternalError(absl::StrCat("page ", copy.target.value(),
                                              " was freed while a step in flight copies into it"));
    }
  }
  clears.insert(clears.end(), taken_.clears.begin(), taken_.clears.end());
  const std::vector<BlockId> quarantined = pool_->quarantined_pages();
  if (clears.size() != num_clears_taken_ || clears.size() > quarantined.size() ||
      !std::equal(clears.begin(), clears.end(), quarantined.begin())) {
    return absl::InternalError(absl::StrCat(clears.size(),
                                            " pages are being cleared that are not the first of ",
                                            quarantined.size(), " quarantined ones"));
  }
  for (const PageCopy& copy : queued_copies_) {
    if (!pool_->is_referenced(copy.target) || copy.num_rows == 0 ||
        copy.num_rows > layout_->page_size()) {
      return absl::InternalError(absl::StrCat("a copy of ", copy.num_rows, " rows into page ",
                                              copy.target.value(), " has no purpose"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
