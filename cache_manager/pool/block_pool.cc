#include "cache_manager/pool/block_pool.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace quire::cache {

absl::string_view PageStateName(PageState state) {
  static constexpr absl::string_view kNames[] = {"null",      "free",       "cached",     "active",
                                                 "published", "in transit", "quarantined"};
  return kNames[static_cast<std::size_t>(state)];
}

BlockPool::BlockPool(std::uint32_t num_blocks) : pages_(num_blocks) {
  QUIRE_CHECK(num_blocks >= 2);
  for (std::uint32_t page = 1; page < num_blocks; ++page) free_.push_back(&pages_[page]);
}

BlockPool::Page& BlockPool::at(BlockId page) {
  QUIRE_CHECK(page != kNullBlock && page.value() < pages_.size());
  return pages_[page.value()];
}

const BlockPool::Page& BlockPool::at(BlockId page) const {
  QUIRE_CHECK(page != kNullBlock && page.value() < pages_.size());
  return pages_[page.value()];
}

BlockId BlockPool::id(const Page* page) const {
  return BlockId{static_cast<std::uint32_t>(page - pages_.data())};
}

PageState BlockPool::StateOf(const Page& page) const {
  const bool has_node = page.node != kNoNode;
  if (&page == pages_.data()) return PageState::kNull;
  if (page.row_refs > 0) return has_node ? PageState::kPublished : PageState::kActive;
  if (page.holds > 0) return PageState::kInTransit;
  if (page.is_poisoned) return PageState::kQuarantined;
  return has_node ? PageState::kCached : PageState::kFree;
}

PageState BlockPool::state(BlockId page) const {
  QUIRE_CHECK(page.value() < pages_.size());
  return StateOf(pages_[page.value()]);
}

const BlockPool::List* BlockPool::ListOf(PageState state) const {
  switch (state) {
    case PageState::kFree:
      return &free_;
    case PageState::kCached:
      return &cached_;
    case PageState::kQuarantined:
      return &quarantined_;
    default:
      return nullptr;
  }
}

BlockPool::List* BlockPool::ListOf(PageState state) {
  return const_cast<List*>(static_cast<const BlockPool*>(this)->ListOf(state));
}

absl::Status BlockPool::Allocate(std::span<BlockId> out) {
  QUIRE_CHECK(!out.empty());
  if (out.size() > available()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("needs ", out.size(), " pages, ", available(), " available"));
  }
  for (BlockId& page : out) {
    if (free_.empty()) EvictColdest();
    Page* allocated = free_.pop_front();
    allocated->row_refs = 1;
    allocated->is_proven_finite = false;
    page = id(allocated);
  }
  return absl::OkStatus();
}

void BlockPool::EvictColdest() {
  QUIRE_CHECK(!cached_.empty());
  Evict(id(cached_.front()));
}

void BlockPool::Evict(BlockId page) {
  QUIRE_CHECK(state(page) == PageState::kCached);
  evict_(page);
  QUIRE_CHECK(state(page) == PageState::kFree);
}

BlockId BlockPool::FindCached(absl::FunctionRef<bool(BlockId page)> is_wanted) const {
  for (const Page* page = cached_.front(); page != nullptr; page = List::next(page)) {
    if (is_wanted(id(page))) return id(page);
  }
  return kNullBlock;
}

void BlockPool::Unlink(Page& page) {
  if (page.row_refs + page.holds > 0) return;
  QUIRE_CHECK(StateOf(page) == PageState::kCached);
  cached_.erase(&page);
}

void BlockPool::Link(Page& page, BlockId before) {
  if (page.row_refs + page.holds > 0) return;
  const PageState state = StateOf(page);
  if (state != PageState::kQuarantined) ++num_returned_;
  if (state == PageState::kFree) {
    free_.push_front(&page);
  } else if (state == PageState::kQuarantined) {
    quarantined_.push_back(&page);
  } else {
    QUIRE_CHECK(before == kNullBlock || this->state(before) == PageState::kCached);
    cached_.InsertBefore(before == kNullBlock ? nullptr : &at(before), &page);
  }
}

void BlockPool::AddRowRef(BlockId page) {
  Unlink(at(page));
  ++at(page).row_refs;
}

void BlockPool::AddHold(BlockId page) {
  Unlink(at(page));
  ++at(page).holds;
}

void BlockPool::DropRowRef(BlockId page, BlockId before) {
  QUIRE_CHECK(at(page).row_refs > 0);
  --at(page).row_refs;
  Link(at(page), before);
}

void BlockPool::DropHold(BlockId page, BlockId before) {
  QUIRE_CHECK(at(page).holds > 0);
  --at(page).holds;
  Link(at(page), before);
}

void BlockPool::AttachNode(BlockId page, NodeId node) {
  Page& target = at(page);
  QUIRE_CHECK(is_referenced(page) && !target.is_poisoned);
  QUIRE_CHECK(target.node == kNoNode && node != kNoNode);
  target.node = node;
}

void BlockPool::DetachNode(BlockId page) {
  Page& target = at(page);
  QUIRE_CHECK(target.node != kNoNode);
  const bool was_cached = StateOf(target) == PageState::kCached;
  target.node = kNoNode;
  ++num_detached_;
  if (!was_cached) return;
  cached_.erase(&target);
  free_.push_front(&target);
}

void BlockPool::Poison(BlockId page) {
  QUIRE_CHECK(is_referenced(page) && node(page) == kNoNode);
  at(page).is_poisoned = true;
}

void BlockPool::SetProvenFinite(BlockId page) {
  QUIRE_CHECK(is_referenced(page));
  at(page).is_proven_finite = true;
}

void BlockPool::FreeQuarantined(BlockId page) {
  QUIRE_CHECK(state(page) == PageState::kQuarantined);
  quarantined_.erase(&at(page));
  at(page).is_poisoned = false;
  free_.push_front(&at(page));
  ++num_returned_;
}

std::vector<BlockId> BlockPool::PagesIn(const List& list) const {
  std::vector<BlockId> pages;
  pages.reserve(list.size());
  for (const Page* page = list.front(); page != nullptr; page = List::next(page)) {
    pages.push_back(id(page));
  }
  return pages;
}

absl::Status BlockPool::CheckList(PageState state, std::vector<bool>& seen) const {
  const List& list = *ListOf(state);
  std::size_t count = 0;
  const Page* previous = nullptr;
  for (const Page* page = list.front(); page != nullptr; page = List::next(page)) {
    const std::uint32_t page_id = id(page).value();
    if (StateOf(*page) != state) {
      return absl::InternalError(absl::StrCat("page ", page_id, " is ",
                                              PageStateName(StateOf(*page)), " but in the ",
                                              PageStateName(state), " list"));
    }
    if (seen[page_id] || List::prev(page) != previous || !List::is_linked(page)) {
      return absl::InternalError(
          absl::StrCat("the ", PageStateName(state), " list is broken at page ", page_id));
    }
    seen[page_id] = true;
    previous = page;
    ++count;
  }
  if (list.back() != previous || list.size() != count) {
    return absl::InternalError(absl::StrCat("the ", PageStateName(state), " list counts ",
                                            list.size(), " pages but has ", count));
  }
  return absl::OkStatus();
}

absl::Status BlockPool::CheckIntegrity() const {
  std::vector<bool> seen(pages_.size());
  for (const PageState state : {PageState::kFree, PageState::kCached, PageState::kQuarantined}) {
    QUIRE_RETURN_IF_ERROR(CheckList(state, seen));
  }
  const Page& null_page = pages_.front();
  if (null_page.row_refs + null_page.holds > 0 || null_page.node != kNoNode || seen[0]) {
    return absl::InternalError("the null page is referenced, has a node or is in a list");
  }
  for (std::uint32_t page = 1; page < pages_.size(); ++page) {
    const PageState state = StateOf(pages_[page]);
    if ((ListOf(state) != nullptr) != seen[page]) {
      return absl::InternalError(absl::StrCat("page ", page, " is ", PageStateName(state),
                                              seen[page] ? " but in a list" : " but in no list"));
    }
    if (pages_[page].is_poisoned && pages_[page].node != kNoNode) {
      return absl::InternalError(absl::StrCat("page ", page, " is poisoned but has a node"));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::cache
