#pragma once

// Which accesses of a launch are ordered: a vector clock for every emulated thread (Fidge,
// Mattern), over the threads of its block, the bulk copies of the block by their mbarrier, the
// kernel in front, and blocks of which an atomic has told.
//
// Threads: as simt.h. Objects that several threads share are never changed.

#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <boost/smart_ptr/intrusive_ref_counter.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire::cuda_emulator {

struct Seen;
using SeenRef = boost::intrusive_ptr<const Seen>;
// By number of the block, ascending.
using OtherBlocks = std::vector<std::pair<std::uint32_t, SeenRef>>;

// Up to when the accesses of each member of a block are known. A member is a thread, by its index,
// or one of those behind them (ClockMembers).
struct Seen : boost::intrusive_ref_counter<Seen, boost::thread_unsafe_counter> {
  explicit Seen(std::size_t members) : clocks(members) {}
  std::vector<std::uint32_t> clocks;
  // The same for what the async proxy (bulk copies, wgmma) sees of ordinary writes; empty: nothing.
  std::vector<std::uint32_t> async_clocks;
  OtherBlocks other_blocks;
};

// Members of a block of n threads: those, one for each of its mbarriers (a barrier that completes
// says nothing of copies that others count), and the kernel in front, whose clock is 1 once it has
// been waited for.
inline constexpr std::uint32_t kMaxMbarriers = 64;
inline std::uint32_t MbarrierMember(std::uint32_t threads, std::uint32_t mbarrier) {
  return threads + mbarrier;
}
inline std::uint32_t FrontMember(std::uint32_t threads) {
  return threads + kMaxMbarriers;
}
inline std::uint32_t NumMembers(std::uint32_t threads) {
  return threads + kMaxMbarriers + 1;
}

// Times of one block that are told apart; a thread that reaches the last ends the process.
inline constexpr std::uint32_t kMaxClock = (1u << 22) - 1;

// One thread's time, which its releases advance.
struct ThreadClock {
  std::uint32_t index = 0;
  std::uint32_t now = 1;
  std::uint32_t async_fenced = 0;  // its own writes up to here are seen by the async proxy
  SeenRef seen = {};
  SeenRef fenced = {};        // at the last DeviceFence; null before
  OtherBlocks acquired = {};  // through atomics; known from the next DeviceFence on
};

// What several threads that meet release and acquire.
class Meeting {
 public:
  // All that `thread` has done and seen is released.
  void Arrive(ThreadClock* thread);
  // `member` is no thread.
  void Arrive(std::uint32_t member, std::uint32_t clock, std::size_t members);
  void Arrive(const SeenRef& seen);
  // The same for a thread of block `from`, where block `here` meets.
  void ArriveFrom(std::uint32_t from, ThreadClock* thread, std::uint32_t here);
  bool is_empty() const { return all_ == nullptr; }
  // What was released; the meeting is empty again.
  SeenRef Finish();

 private:
  boost::intrusive_ptr<Seen> all_;
  SeenRef last_;  // already in all_
};

void Acquire(ThreadClock* thread, const SeenRef& released);

// `own`, of block `here`, and what block `from` has seen.
SeenRef Told(const SeenRef& own, std::uint32_t here, std::uint32_t from, const Seen& seen);

// DeviceFence, and relaxed atomics on one address, whose `published` is what they have told so far
// (PTX ISA, "Release and acquire patterns": fence, atomic; atomic, fence).
void Fence(ThreadClock* thread);
void ExchangeThroughAtomic(ThreadClock* thread, std::uint32_t block, OtherBlocks* published);

// FenceAsyncShared: the async proxy sees what the thread sees.
void FenceAsync(ThreadClock* thread);

// DependencyWait.
void SeeKernelInFront(ThreadClock* thread, std::uint32_t threads);

}  // namespace quire::cuda_emulator
