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
  pool_->AddHold(source);
  queued_copies_.push_back({.source = source, .target = target, .num_rows = num_rows});
}

void StepWork::CancelCopyInto(BlockId page) {
  if (queued_copies_.empty() || pool_->is_referenced(page)) return;
  const auto copy = std::ranges::find(queued_copies_, page, &PageCopy::target);
  if (copy == queued_copies_.end()) return;
  const BlockId source = copy->source;
  queued_copies_.erase(copy);
  DropHold(source);
}

bool StepWork::AwaitsCopy(BlockId page) const {
  return std::ranges::find(queued_copies_, page, &PageCopy::target) != queued_copies_.end();
}

bool StepWork::IsCopyTarget(BlockId page) const {
  return std::ranges::any_of(in_flight_, [&](const Step& step) {
    return std::ranges::find(step.copies, page, &PageCopy::target) != step.copies.end();
  });
}

std::vector<PageCopy> StepWork::TakeCopies() {
  std::vector<PageCopy> copies = queued_copies_;
  queued_copies_.clear();
  next_step_.copies.insert(next_step_.copies.end(), copies.begin(), copies.end());
  return copies;
}

std::vector<BlockId> StepWork::TakeClears() {
  if (pool_->num_quarantined() == num_pages_being_cleared_) return {};
  const std::vector<BlockId> all = pool_->quarantined_pages();
  std::vector<BlockId> clears(all.begin() + static_cast<std::ptrdiff_t>(num_pages_being_cleared_),
                              all.end());
  num_pages_being_cleared_ = all.size();
  next_step_.clears.insert(next_step_.clears.end(), clears.begin(), clears.end());
  return clears;
}

void StepWork::Start() {
  ++num_started_;
  in_flight_.push_back(std::exchange(next_step_, {}));
}

void StepWork::AddRow(BatchRow row) {
  QUIRE_CHECK(row.value() < last_step_.size());
  QUIRE_CHECK(std::exchange(last_step_[row.value()], num_started_) != num_started_);
}

void StepWork::Complete(bool is_poisoned) {
  // A row that the completing step poisoned may have been freed after later steps were launched.
  // The last of these steps then pins the row's pages, so pages pinned by any step are poisoned.
  for (const Step& step : in_flight_) {
    if (is_poisoned) PoisonPinned(step);
  }
  if (!in_flight_.empty()) {
    Step step = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    Release(step);
  }
  // A caller that runs one step at a time may take work after Start. That work is then in
  // next_step_ and is also complete.
  if (in_flight_.empty()) Release(next_step_);
}

void StepWork::Pin(BlockId page) {
  pool_->AddHold(page);
  in_flight_.back().pinned.push_back(page);
}

bool StepWork::IsInFlight(BatchRow row) const {
  QUIRE_CHECK(row.value() < last_step_.size());
  return last_step_[row.value()] > num_completed();
}

void StepWork::ForgetRow(BatchRow row) {
  QUIRE_CHECK(row.value() < last_step_.size());
  last_step_[row.value()] = 0;
}

bool StepWork::has_work() const {
  return !queued_copies_.empty() || pool_->num_quarantined() > num_pages_being_cleared_;
}

void StepWork::DropHold(BlockId page) {
  prefixes_->DropHold(page);
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

// Releases pages in the reverse order of pinning, so that the first page of a row comes first. A
// released page is inserted into the eviction order directly before its parent, which takes O(1) if
// the parent was released first. The source of a copy is the last page of a matched prefix, so it
// is released after the pinned pages.
void StepWork::Release(Step& step) {
  for (auto pinned = step.pinned.rbegin(); pinned != step.pinned.rend(); ++pinned) {
    DropHold(*pinned);
  }
  for (const PageCopy& copy : step.copies) DropHold(copy.source);
  for (const BlockId page : step.clears) pool_->FreeQuarantined(page);
  num_pages_being_cleared_ -= step.clears.size();
  step.copies.clear();
  step.pinned.clear();
  step.clears.clear();
}

void StepWork::CountHolds(std::span<std::uint32_t> holds) const {
  for (const PageCopy& copy : queued_copies_) ++holds[copy.source.value()];
  const auto count = [&](const Step& step) {
    for (const PageCopy& copy : step.copies) ++holds[copy.source.value()];
    for (const BlockId page : step.pinned) ++holds[page.value()];
  };
  count(next_step_);
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
  clears.insert(clears.end(), next_step_.clears.begin(), next_step_.clears.end());
  const std::vector<BlockId> quarantined = pool_->quarantined_pages();
  if (clears.size() != num_pages_being_cleared_ || clears.size() > quarantined.size() ||
      !std::equal(clears.begin(), clears.end(), quarantined.begin())) {
    return absl::InternalError(
        absl::StrCat(clears.size(), " pages are being cleared, but they are not the first of ",
                     quarantined.size(), " quarantined pages"));
  }
  for (const PageCopy& copy : queued_copies_) {
    if (!pool_->is_referenced(copy.target) || copy.num_rows == 0 ||
        copy.num_rows > layout_->page_size()) {
      return absl::InternalError(absl::StrCat("invalid queued copy: ", copy.num_rows,
                                              " rows into page ", copy.target.value()));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
