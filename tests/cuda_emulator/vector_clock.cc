#include "tests/cuda_emulator/vector_clock.h"

#include <algorithm>

namespace quire::cuda_emulator {
namespace {

void Raise(std::vector<std::uint32_t>* to, const std::vector<std::uint32_t>& from) {
  if (from.empty()) return;
  if (to->empty()) to->resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) (*to)[i] = std::max((*to)[i], from[i]);
}

bool Covers(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  if (a.empty()) return b.empty();
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (a[i] < b[i]) return false;
  }
  return true;
}

// The view of another block contains that block's view of others, as deep as blocks have
// synchronized with each other in sequence.
// NOLINTBEGIN(misc-no-recursion)
SeenRef Joined(const SeenRef& a, const SeenRef& b);

void Merge(OtherBlocks* to, std::uint32_t block, const SeenRef& seen) {
  const auto at = std::lower_bound(to->begin(), to->end(), block,
                                   [](const auto& a, std::uint32_t b) { return a.first < b; });
  if (at == to->end() || at->first != block) {
    to->insert(at, {block, seen});
  } else {
    at->second = Joined(at->second, seen);
  }
}
void Merge(OtherBlocks* to, const OtherBlocks& from) {
  for (const auto& [block, seen] : from) Merge(to, block, seen);
}

void Raise(Seen* to, const Seen& from) {
  Raise(&to->clocks, from.clocks);
  Raise(&to->async_clocks, from.async_clocks);
  Merge(&to->other_blocks, from.other_blocks);
}

bool Covers(const Seen& a, const Seen& b) {
  return Covers(a.clocks, b.clocks) && Covers(a.async_clocks, b.async_clocks) &&
         (b.other_blocks.empty() || a.other_blocks == b.other_blocks);
}

SeenRef Joined(const SeenRef& a, const SeenRef& b) {
  if (a == b || Covers(*a, *b)) return a;
  if (Covers(*b, *a)) return b;
  boost::intrusive_ptr<Seen> both(new Seen(*a));
  Raise(both.get(), *b);
  return both;
}
// NOLINTEND(misc-no-recursion)

// Applies `change` to a copy of *seen. Consecutive threads of a block usually request the same
// change.
template <typename Change>
SeenRef Changed(const SeenRef& seen, Change change) {
  static SeenRef last, last_changed;
  if (seen != last) {
    boost::intrusive_ptr<Seen> changed(new Seen(*seen));
    change(changed.get());
    last = seen;
    last_changed = changed;
  }
  return last_changed;
}

// Includes the thread's own accesses.
boost::intrusive_ptr<Seen> Own(const ThreadClock& thread) {
  boost::intrusive_ptr<Seen> own(new Seen(*thread.seen));
  own->clocks[thread.index] = thread.now;
  return own;
}

// `to`, a view of block `here`, learns what block `from` has seen. Views of all blocks are kept at
// the top level, so that blocks that synchronize repeatedly do not grow their views without bound.
void Learn(Seen* to, std::uint32_t here, std::uint32_t from, const Seen& seen) {
  for (const auto& [block, other] : seen.other_blocks) {
    if (block == here) {
      Raise(&to->clocks, other->clocks);
    } else {
      Merge(&to->other_blocks, block, other);
    }
  }
  auto* const told = new Seen(seen);
  told->other_blocks.clear();
  Merge(&to->other_blocks, from, SeenRef(told));
}

}  // namespace

SeenRef Told(const SeenRef& own, std::uint32_t here, std::uint32_t from, const Seen& seen) {
  boost::intrusive_ptr<Seen> told(new Seen(*own));
  Learn(told.get(), here, from, seen);
  return told;
}

void Meeting::ArriveFrom(std::uint32_t from, ThreadClock* thread, std::uint32_t here) {
  if (all_ == nullptr) all_.reset(new Seen(thread->seen->clocks.size()));
  Learn(all_.get(), here, from, *Own(*thread));
  ++thread->now;
}

void Meeting::Arrive(ThreadClock* thread) {
  Arrive(thread->seen);
  const std::uint32_t i = thread->index;
  all_->clocks[i] = std::max(all_->clocks[i], thread->now++);
  if (thread->async_fenced == 0) return;
  if (all_->async_clocks.empty()) all_->async_clocks.resize(all_->clocks.size());
  all_->async_clocks[i] = std::max(all_->async_clocks[i], thread->async_fenced);
}

void Meeting::Arrive(std::uint32_t member, std::uint32_t clock, std::size_t members) {
  if (all_ == nullptr) all_.reset(new Seen(members));
  all_->clocks[member] = std::max(all_->clocks[member], clock);
}

void Meeting::Arrive(const SeenRef& seen) {
  if (all_ == nullptr) {
    all_.reset(new Seen(*seen));
  } else if (seen != last_) {
    Raise(all_.get(), *seen);
  }
  last_ = seen;
}

SeenRef Meeting::Finish() {
  last_.reset();
  return std::exchange(all_, nullptr);
}

void Acquire(ThreadClock* thread, const SeenRef& released) {
  // The lanes of a warp usually join the same two views one after the other.
  static SeenRef last_a, last_b, last_joined;
  if (released == nullptr || thread->seen == released) return;
  if (thread->seen != last_a || released != last_b) {
    last_a = thread->seen;
    last_b = released;
    last_joined = Joined(last_a, last_b);
  }
  thread->seen = last_joined;
}

void Fence(ThreadClock* thread) {
  boost::intrusive_ptr<Seen> own = Own(*thread);
  if (!thread->acquired.empty()) {
    Merge(&own->other_blocks, thread->acquired);
    thread->acquired.clear();
    thread->seen = own;
  }
  thread->fenced = own;
  ++thread->now;
}

void ExchangeThroughAtomic(ThreadClock* thread, std::uint32_t block, OtherBlocks* published) {
  Merge(&thread->acquired, *published);
  if (thread->fenced == nullptr) return;
  Merge(published, thread->fenced->other_blocks);
  Merge(published, block, thread->fenced);
}

void FenceAsync(ThreadClock* thread) {
  thread->seen = Changed(thread->seen, [](Seen* seen) { seen->async_clocks = seen->clocks; });
  thread->async_fenced = thread->now++;
}

void SeeKernelInFront(ThreadClock* thread, std::uint32_t threads) {
  thread->seen =
      Changed(thread->seen, [threads](Seen* seen) { seen->clocks[FrontMember(threads)] = 1; });
}

}  // namespace quire::cuda_emulator
