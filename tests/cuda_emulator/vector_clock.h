#pragma once

// Tracks which accesses of a launch are ordered. Every emulated thread has a vector clock (Fidge,
// Mattern) over the threads of its block, the block's bulk copies by their mbarrier, the preceding
// kernel, and blocks that it has synchronized with through an atomic.
//
// Threads: as in simt.h. Objects shared by several threads are immutable.

#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <boost/smart_ptr/intrusive_ref_counter.hpp>
#include <cstdint>
#include <utility>
#include <vector>

namespace quire::cuda_emulator {

struct Seen;
using SeenRef = boost::intrusive_ptr<const Seen>;
// Entries are in ascending order of block number.
using OtherBlocks = std::vector<std::pair<std::uint32_t, SeenRef>>;

// The time up to which the accesses of each member of a block are known. A member is a thread, by
// its index, or one of the additional members (ClockMembers).
struct Seen : boost::intrusive_ref_counter<Seen, boost::thread_unsafe_counter> {
  explicit Seen(std::size_t members) : clocks(members) {}
  std::vector<std::uint32_t> clocks;
  // The ordinary writes that the async proxy (bulk copies, wgmma) sees. Empty means none.
  std::vector<std::uint32_t> async_clocks;
  OtherBlocks other_blocks;
};

// Members of a block of n threads: the threads, one for each of its mbarriers, and the preceding
// kernel. A completed barrier says nothing about the copies of others. The clock of the preceding
// kernel is 1 once it has been waited for.
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

// Number of distinguishable times of one block. A thread that reaches the last one aborts the
// process.
inline constexpr std::uint32_t kMaxClock = (1u << 22) - 1;

// One thread's time, which its releases advance.
struct ThreadClock {
  std::uint32_t index = 0;
  std::uint32_t now = 1;
  std::uint32_t async_fenced = 0;  // its own writes up to here are visible to the async proxy
  SeenRef seen = {};
  SeenRef fenced = {};        // at the last DeviceFence; null before
  OtherBlocks acquired = {};  // through atomics; visible from the next DeviceFence on
};

// The accesses that several meeting threads release and acquire.
class Meeting {
 public:
  // Releases everything that `thread` has done and seen.
  void Arrive(ThreadClock* thread);
  // The same for a `member` that is not a thread.
  void Arrive(std::uint32_t member, std::uint32_t clock, std::size_t members);
  void Arrive(const SeenRef& seen);
  // The same for a thread of block `from` that meets in block `here`.
  void ArriveFrom(std::uint32_t from, ThreadClock* thread, std::uint32_t here);
  bool is_empty() const { return all_ == nullptr; }
  // Returns what was released and empties the meeting.
  SeenRef Finish();

 private:
  boost::intrusive_ptr<Seen> all_;
  SeenRef last_;  // already in all_
};

void Acquire(ThreadClock* thread, const SeenRef& released);

// Merges `own`, a view of block `here`, with what block `from` has seen.
SeenRef Told(const SeenRef& own, std::uint32_t here, std::uint32_t from, const Seen& seen);

// DeviceFence, and relaxed atomics on one address, whose `published` accumulates what they released
// (PTX ISA, "Release and acquire patterns": fence, atomic; atomic, fence).
void Fence(ThreadClock* thread);
void ExchangeThroughAtomic(ThreadClock* thread, std::uint32_t block, OtherBlocks* published);

// FenceAsyncShared: makes everything visible to the thread visible to the async proxy.
void FenceAsync(ThreadClock* thread);

// Implements DependencyWait.
void SeeKernelInFront(ThreadClock* thread, std::uint32_t threads);

}  // namespace quire::cuda_emulator
