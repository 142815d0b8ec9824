#include "tests/cuda_emulator/simt.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/access_count.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/source_line.h"

namespace quire::cuda_emulator {

constinit thread_local Thread* current_thread = nullptr;

namespace {

constexpr std::uint32_t kNoDetail = ~0u;
constexpr char kBlockBarrier[] = "SyncBlock";
constexpr char kClusterBarrier[] = "the cluster";
// When a warp yields, the scheduler chooses another block with probability 1 / kStayInBlock.
constexpr std::uint32_t kStayInBlock = 8;

struct Warp {
  std::uint32_t runnable = 0;  // lanes that can run now
  std::uint32_t live = 0;      // lanes that have not ended
  std::uint32_t joined = 0;    // lanes that wait in a collective
  // Whether all of them wait in the same collective, and its first lane.
  bool same = true;
  std::uint32_t first_joined = 0;
};

struct NamedBarrierState {
  std::uint32_t threads = 0;  // 0 if no thread is there
  std::uint32_t arrived = 0;
  std::vector<Thread*> waiting;
  Meeting meeting;
};

struct LateWork {
  std::function<void()> run;
  bool any_time = false;
};

// Scheduling of the threads of one block, drawn once per block.
struct Turns {
  bool descending = false;  // order of lanes of a warp
  // A warp continues after a collective with probability 1 - 1 / stay; 1: never.
  std::uint32_t stay = 1;
};

struct Block {
  std::uint32_t number = 0;  // see access_check.h
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  Random random;
  Turns turns;
  Warp warps[kMaxWarps];
  std::uint32_t num_warps = 0;
  std::uint32_t ready = 0;  // warps with a runnable lane
  std::uint32_t live_threads = 0;
  std::uint32_t at_barrier = 0;
  // The cluster: the number of its first block, the start of shared memory in all of them, and in
  // the first block its barrier.
  std::uint32_t cluster = 0;
  std::uint32_t shared_start = 0;
  std::uint32_t at_cluster_barrier = 0;
  std::uint32_t cluster_phase = 0;
  Meeting cluster_meeting;  // of the block's own threads
  SeenRef cluster_seen;     // at the end of the last phase
  NamedBarrierState named[16];
  // Arrivals of threads of other blocks: the block, the thread and the last time.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> from_outside;
  std::vector<LateWork> late;
  std::map<std::uint32_t, MbarrierClock> mbarriers;  // by shared address
  std::vector<Thread> threads;
};

// The running launch. Null outside kernels.
const KernelLaunch* launch = nullptr;
Random launch_random;
Block blocks[kMaxResidentBlocks];
// The block of current_thread, or the block whose deferred work runs.
Block* block = &blocks[0];
// The thread that starts kernels. Its index is unique.
Thread main_thread;
SimtCounters counters;
// Whether a thread of the launch has waited for the preceding kernel.
bool waited_in_front = false;

void Select(Block* which) {
  block = which;
  SelectSharedWindow(CurrentSlot());
}

// Returns the block of this rank in the current block's cluster.
Block& OfCluster(std::uint32_t rank) {
  return blocks[CurrentSlot() / launch->cluster_x * launch->cluster_x + rank];
}

void MakeRunnable(Thread* thread) {
  thread->waits_for = nullptr;
  block->warps[thread->warp].runnable |= 1u << thread->lane;
  block->ready |= 1u << thread->warp;
}

// Returns the next set bit of `bits` at or above (below) `from`, cyclically. REQUIRES: bits is not
// 0.
std::uint32_t NextBit(std::uint32_t bits, std::uint32_t from) {
  const std::uint32_t above = bits >> from << from;
  return static_cast<std::uint32_t>(std::countr_zero(above != 0 ? above : bits));
}
std::uint32_t BitBefore(std::uint32_t bits, std::uint32_t from) {
  const std::uint32_t below = bits << (31 - from) >> (31 - from);
  return 31 - static_cast<std::uint32_t>(std::countl_zero(below != 0 ? below : bits));
}

Thread* Take(std::uint32_t warp_index, std::uint32_t from_lane) {
  Warp& warp = block->warps[warp_index];
  const std::uint32_t lane = block->turns.descending ? BitBefore(warp.runnable, from_lane)
                                                     : NextBit(warp.runnable, from_lane);
  warp.runnable &= ~(1u << lane);
  if (warp.runnable == 0) block->ready &= ~(1u << warp_index);
  return &block->threads[warp_index * kWarpSize + lane];
}

std::string Lanes(std::uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08x", mask);
  return text;
}

// Describes what every warp waits for.
std::string Waiting() {
  std::string text;
  for (std::uint32_t w = 0; w < block->num_warps; ++w) {
    std::map<std::string, std::uint32_t> groups;
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const std::uint32_t index = w * kWarpSize + lane;
      if (index >= launch->threads) continue;
      const Thread& thread = block->threads[index];
      std::string what = "have ended";
      if ((block->warps[w].live >> lane & 1u) != 0) {
        what =
            thread.waits_for == nullptr ? "can run" : absl::StrCat("wait for ", thread.waits_for);
        if (thread.waits_for != nullptr && thread.collective != nullptr) {
          absl::StrAppend(&what, " of lanes ", Lanes(thread.collective_mask));
        } else if (thread.waits_for != nullptr && thread.waits_detail != kNoDetail) {
          absl::StrAppend(&what, " ", thread.waits_detail);
        }
      }
      groups[what] |= 1u << lane;
    }
    for (const auto& [what, mask] : groups) {
      absl::StrAppend(&text, "\n  warp ", w, " lanes ", Lanes(mask), " ", what);
    }
  }
  return text;
}

void RunLateWork(std::size_t i) {
  std::swap(block->late[i], block->late.back());
  const std::function<void()> run = std::move(block->late.back().run);
  block->late.pop_back();
  run();
}

void MaybeRunLateWork() {
  if (block->late.empty() || block->random.Below(4) != 0) return;
  const std::size_t i = block->random.Below(static_cast<std::uint32_t>(block->late.size()));
  if (block->late[i].any_time) RunLateWork(i);
}

// Makes an existing block current for which `fits` is true: a random one, or the next after it.
// Returns false if there is none.
template <typename Fits>
bool PickBlock(Fits fits) {
  const std::uint32_t from = launch_random.Below(kMaxResidentBlocks);
  for (std::uint32_t i = 0; i < kMaxResidentBlocks; ++i) {
    Block& candidate = blocks[(from + i) % kMaxResidentBlocks];
    if (candidate.live_threads == 0 || !fits(candidate)) continue;
    Select(&candidate);
    return true;
  }
  return false;
}

// Picks a thread of any block and makes it current.
Thread* NextOfAny() {
  while (!PickBlock([](const Block& b) { return b.ready != 0; })) {
    if (!PickBlock([](const Block& b) { return !b.late.empty(); })) {
      PickBlock([](const Block&) { return true; });  // a waiting block, for the message
      Fatal("deadlock" + Waiting());
    }
    RunLateWork(block->random.Below(static_cast<std::uint32_t>(block->late.size())));
  }
  return Take(NextBit(block->ready, block->random.Below(32)), block->random.Below(32));
}

// Picks the next thread instead of the caller. Sometimes another block is chosen although this one
// could run.
Thread* Next(const Thread& self, bool other_warp) {
  if (!other_warp && block->warps[self.warp].runnable != 0) {
    return Take(self.warp, self.lane);
  }
  MaybeRunLateWork();
  if (block->ready == 0 || block->random.Below(kStayInBlock) == 0) return NextOfAny();
  return Take(NextBit(block->ready, block->random.Below(32)), block->random.Below(32));
}

void Leave(bool other_warp) {
  Thread* const self = current_thread;
  Thread* const next = Next(*self, other_warp);
  if (next == self) return;
  ++counters.switches;
  SwitchFiber(self, next);
}

// After a collective or a barrier, sometimes lets another warp run first.
void MaybeYield() {
  if (block->ready == 0 || block->random.Below(block->turns.stay + 1) != 0) return;
  MakeRunnable(current_thread);
  Leave(/*other_warp=*/true);
}

bool SameCollective(const Thread& a, const Thread& b) {
  return a.collective == b.collective && a.collective_mask == b.collective_mask &&
         a.collective_argument == b.collective_argument;
}

// Aborts if one of `lanes` has joined another collective than `self`.
void CheckSameCollective(const Warp& warp, const Thread& self, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes & warp.joined; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    const Thread& other = block->threads[self.warp * kWarpSize + lane];
    if (SameCollective(self, other)) continue;
    Fatal(absl::StrCat("lanes of one warp meet in different collectives: lane ", self.lane, " in ",
                       self.waits_for, " of ", Lanes(self.collective_mask), ", lane ", other.lane,
                       " in ", other.waits_for, " of ", Lanes(other.collective_mask)));
  }
}

// Aborts a collective of `mask` that the lane must not join.
[[noreturn]] [[gnu::cold]] void ReportLanes(const char* name, std::uint32_t lane,
                                            std::uint32_t mask, std::uint32_t live) {
  if ((mask >> lane & 1u) == 0) {
    Fatal(absl::StrCat(name, ": lane ", lane, " is not in its own mask ", Lanes(mask)));
  }
  Fatal(absl::StrCat(name, " needs all 32 lanes, there are ", Lanes(live)));
}

// Adds the lane to the waiting ones.
void Join(Warp* warp, const Thread& self) {
  if (warp->joined == 0) {
    warp->same = true;
    warp->first_joined = self.lane;
  } else if (warp->same) {
    warp->same = SameCollective(self, block->threads[self.warp * kWarpSize + warp->first_joined]);
  }
  if (!warp->same) CheckSameCollective(*warp, self, self.collective_mask & warp->live);
  warp->joined |= 1u << self.lane;
}

// Runs the collective that `first` has joined if all required lanes have arrived.
bool CompleteCollective(const Thread& first) {
  Warp& warp = block->warps[first.warp];
  const std::uint32_t lanes = first.collective_mask & warp.live;
  if (lanes == 0 || (warp.joined & lanes) != lanes) return false;
  if (!warp.same) CheckSameCollective(warp, first, lanes);
  const void* const function = first.collective;
  const std::uint64_t argument = first.collective_argument;
  void* operands[kWarpSize] = {};
  Thread* const base = &block->threads[first.warp * kWarpSize];
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    operands[lane] = base[lane].operand;
    base[lane].collective = nullptr;
    base[lane].waits_for = nullptr;
  }
  warp.joined &= ~lanes;
  warp.runnable |= lanes;
  block->ready |= 1u << first.warp;
  ++counters.collectives;
  if (is_counting && lanes == warp.live) FinishWarp(CurrentSlot(), first.warp);
  reinterpret_cast<CollectiveFunction>(const_cast<void*>(function))(operands, lanes, argument);
  return true;
}

// Makes the actions of all `meet` threads visible to each of them.
template <typename Meets>
void Meet(std::uint32_t first, std::uint32_t count, Meets meets) {
  if (!is_checking) return;
  Meeting meeting;
  for (std::uint32_t i = first; i < first + count; ++i) {
    if (meets(i)) meeting.Arrive(&block->threads[i].clock);
  }
  const SeenRef all = meeting.Finish();
  for (std::uint32_t i = first; i < first + count; ++i) {
    if (meets(i)) block->threads[i].clock.seen = all;
  }
}

bool IsLive(std::uint32_t thread) {
  return (block->warps[thread / kWarpSize].live >> thread % kWarpSize & 1u) != 0;
}

void FinishWarps() {
  for (std::uint32_t warp = 0; warp < block->num_warps; ++warp) FinishWarp(CurrentSlot(), warp);
}

void ReleaseBlockBarrier() {
  block->at_barrier = 0;
  if (is_counting) FinishWarps();
  Meet(0, launch->threads, IsLive);
  for (std::uint32_t i = 0; i < launch->threads; ++i) {
    if (block->threads[i].waits_for == kBlockBarrier) MakeRunnable(&block->threads[i]);
  }
}

void ReleaseCluster() {
  Block& first = OfCluster(0);
  first.at_cluster_barrier = 0;
  ++first.cluster_phase;
  std::vector<SeenRef> seen(launch->cluster_x);
  for (std::uint32_t i = 0; i < launch->cluster_x; ++i) {
    seen[i] = OfCluster(i).cluster_meeting.Finish();
  }
  for (std::uint32_t i = 0; i < launch->cluster_x; ++i) {
    const InBlock there(i);
    block->cluster_seen = seen[i];
    for (std::uint32_t j = 0; j < launch->cluster_x; ++j) {
      if (j == i || !is_checking) continue;
      block->cluster_seen = Told(block->cluster_seen, block->number, OfCluster(j).number, *seen[j]);
    }
    for (std::uint32_t t = 0; t < launch->threads; ++t) {
      if (block->threads[t].waits_for == kClusterBarrier) MakeRunnable(&block->threads[t]);
    }
  }
}

// An arrival that no thread waited for could happen after the block's end.
void CheckArrivalsFromOutside() {
  Meeting meeting;
  for (std::uint32_t i = 0; i < launch->threads; ++i) meeting.Arrive(block->threads[i].clock.seen);
  const SeenRef seen = meeting.Finish();
  for (const auto& [from, time] : block->from_outside) {
    bool is_seen = false;
    for (const auto& [number, other] : seen->other_blocks) {
      is_seen = is_seen || (number == from.first && other->clocks[from.second] >= time);
    }
    if (is_seen) continue;
    Fatal(absl::StrCat("the block ends, and has not waited for what thread ", from.second,
                       " of another block does to its barriers"));
  }
}

// Other threads may wait for the end of this one.
void ThreadEnded() {
  Thread* const self = current_thread;
  if (!self->products.empty()) Fatal("a thread ends with wgmma products under way");
  if (self->clock.now >= kMaxClock) Fatal("more releases of one thread than can be told apart");
  Warp& warp = block->warps[self->warp];
  warp.live &= ~(1u << self->lane);
  --block->live_threads;
  if (block->live_threads == 0) {
    if (!block->late.empty()) Fatal("the block ends with bulk copies under way");
    if (!block->from_outside.empty()) CheckArrivalsFromOutside();
    SwitchFiber(self, &main_thread);
  }
  for (std::uint32_t rest = warp.joined; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (CompleteCollective(block->threads[self->warp * kWarpSize + lane])) break;
  }
  if (block->at_barrier == block->live_threads) ReleaseBlockBarrier();
  Leave(/*other_warp=*/false);
}

void ThreadMain() {
  launch->body(launch->arguments.get());
  ThreadEnded();
}

void StartThread(std::uint32_t i, const SeenRef& nothing_seen) {
  Thread& thread = block->threads[i];
  thread.index = i;
  thread.lane = i % kWarpSize;
  thread.warp = i / kWarpSize;
  thread.slot = CurrentSlot();
  thread.collective = nullptr;
  thread.copies.clear();
  thread.copy_groups = 0;
  thread.products.clear();
  thread.product_groups = 0;
  thread.product_fence = false;
  thread.products_waited = false;
  thread.at_cluster_barrier = false;
  thread.block = block->number;
  thread.cluster = block->cluster;
  thread.clock = {.index = i, .seen = nothing_seen};
  PrepareFiber(&thread, ThreadMain);
  block->warps[thread.warp].live |= 1u << thread.lane;
  MakeRunnable(&thread);
}

void StartThreads() {
  const std::uint32_t n = launch->threads;
  block->num_warps = (n + kWarpSize - 1) / kWarpSize;
  block->live_threads = n;
  block->at_barrier = 0;
  for (NamedBarrierState& barrier : block->named) barrier = {};
  block->late.clear();
  block->mbarriers.clear();
  block->at_cluster_barrier = 0;
  block->cluster_phase = 0;
  block->from_outside.clear();
  block->cluster_meeting = {};
  block->ready = 0;
  for (Warp& warp : block->warps) warp = {};
  if (block->threads.empty()) block->threads.resize(kMaxThreads);
  const SeenRef nothing_seen(is_checking ? new Seen(NumMembers(n)) : nullptr);
  for (std::uint32_t i = 0; i < n; ++i) StartThread(i, nothing_seen);
}

// Starts a block in the slot that is current.
void StartBlock(std::uint32_t x, std::uint32_t y) {
  block->number = is_checking ? BeginBlockChecks() : 0;
  block->cluster = x % launch->cluster_x == 0 ? block->number : OfCluster(0).cluster;
  block->x = x;
  block->y = y;
  block->random = Random(launch_random.Next());
  constexpr std::uint32_t kStay[] = {1, 3, 1u << 20};
  block->turns = {.descending = block->random.Below(2) == 1, .stay = kStay[block->random.Below(3)]};
  const std::uint32_t shared_start = block->random.Below(63);
  block->shared_start = x % launch->cluster_x == 0 ? shared_start : OfCluster(0).shared_start;
  PrepareShared(launch->shared_bytes, block->shared_start);
  StartThreads();
}

// Starts the blocks of a cluster, from this slot on.
void StartCluster(std::uint32_t slot, std::uint32_t cluster) {
  const std::uint32_t x = cluster * launch->cluster_x;
  for (std::uint32_t rank = 0; rank < launch->cluster_x; ++rank) {
    Select(&blocks[slot + rank]);
    StartBlock(x % launch->blocks_x + rank, x / launch->blocks_x);
  }
}

bool ClusterEnded() {
  for (std::uint32_t rank = 0; rank < launch->cluster_x; ++rank) {
    if (OfCluster(rank).live_threads != 0) return false;
  }
  return true;
}

// Runs all clusters of the launch in `order`, several at a time. The next one starts where one has
// ended.
void RunBlocks(const std::vector<std::uint32_t>& order) {
  const std::uint32_t cluster_x = launch->cluster_x;
  const std::size_t resident =
      std::min<std::size_t>(order.size(), 1 + launch_random.Below(kMaxResidentBlocks / cluster_x));
  std::size_t started = 0;
  for (; started < resident; ++started) {
    StartCluster(static_cast<std::uint32_t>(started) * cluster_x, order[started]);
  }
  for (std::size_t ended = 0; ended < order.size() * cluster_x; ++ended) {
    current_thread = &main_thread;
    SwitchFiber(&main_thread, NextOfAny());
    // Control returns here when the current block has ended.
    current_thread = nullptr;
    CheckSharedGuards();
    if (is_counting) FinishWarps();
    if (started < order.size() && ClusterEnded()) {
      StartCluster(CurrentSlot() / cluster_x * cluster_x, order[started++]);
    }
  }
}

}  // namespace

void RunKernel(const KernelLaunch& which, const RunOptions& options) {
  launch = &which;
  waited_in_front = false;
  launch_random = Random(options.seed);
  main_thread.index = kMaxThreads;
  std::vector<std::uint32_t> order(which.blocks_x * which.blocks_y / which.cluster_x);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[launch_random.Below(static_cast<std::uint32_t>(i))]);
  }
  if (options.check) BeginChecks(which, options.follows);
  RunBlocks(order);
  EndChecks();
  if (which.programmatic && !waited_in_front) {
    Fatal("launched to overlap the kernel in front, but no thread has called DependencyWait");
  }
  launch = nullptr;
}

void WaitForKernelInFront() {
  waited_in_front = true;
  if (is_checking) SeeKernelInFront(&current_thread->clock, launch->threads);
}

void FenceDevice() {
  if (is_checking) Fence(&current_thread->clock);
}

void FenceAsyncProxy() {
  if (is_checking) FenceAsync(&current_thread->clock);
}

void MeetLanes(std::uint32_t mask) {
  const std::uint32_t first = current_thread->warp * kWarpSize;
  const std::uint32_t count = std::min(kWarpSize, launch->threads - first);
  Meet(first, count, [&](std::uint32_t i) { return (mask >> (i - first) & 1u) != 0 && IsLive(i); });
}

MbarrierClock& MbarrierClockAt(std::uint32_t address) {
  const auto [found, is_new] = block->mbarriers.try_emplace(address);
  if (is_new) {
    if (block->mbarriers.size() > kMaxMbarriers) Fatal("more mbarriers than are emulated");
    found->second.member =
        MbarrierMember(launch->threads, static_cast<std::uint32_t>(block->mbarriers.size() - 1));
  }
  return found->second;
}

bool InKernel() {
  return launch != nullptr;
}

std::string Where() {
  if (!InKernel()) return "outside kernels";
  std::string text =
      absl::StrCat("kernel ", launch->name, ", block (", block->x, ", ", block->y, ")");
  if (current_thread != nullptr && current_thread != &main_thread &&
      current_thread->slot == CurrentSlot()) {
    absl::StrAppend(&text, ", thread ", current_thread->index);
  }
  return text;
}

void Fatal(const std::string& message) {
  is_checking = false;  // code after this is not the kernel's
  std::fprintf(stderr, "CUDA emulator: %s: %s, at %s\n", Where().c_str(), message.c_str(),
               LineHere().c_str());
  std::fflush(stderr);
  std::abort();
}

const KernelLaunch& CurrentLaunch() {
  return *launch;
}
std::uint32_t CurrentBlockX() {
  return block->x;
}
std::uint32_t CurrentBlockY() {
  return block->y;
}
std::uint32_t CurrentSlot() {
  return static_cast<std::uint32_t>(block - blocks);
}
std::uint32_t CurrentBlockNumber() {
  return block->number;
}
Random& BlockRandom() {
  return block->random;
}
bool IsArgument(const void* p, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(launch->arguments.get());
  const auto* const at = static_cast<const std::byte*>(p);
  return at >= first && at + bytes <= first + launch->argument_bytes;
}
std::vector<Thread>& Threads() {
  return block->threads;
}
std::uint32_t NumThreads() {
  return launch->threads;
}
SimtCounters GetSimtCounters() {
  return counters;
}

void WarpCollective(const char* name, CollectiveFunction function, std::uint64_t argument,
                    std::uint32_t mask, void* operand, bool all_live) {
  Thread& self = *current_thread;
  Warp& warp = block->warps[self.warp];
  if ((mask >> self.lane & 1u) == 0 || (all_live && warp.live != 0xffffffffu)) [[unlikely]] {
    ReportLanes(name, self.lane, mask, warp.live);
  }
  self.waits_for = name;
  self.waits_detail = kNoDetail;
  self.collective = reinterpret_cast<const void*>(function);
  self.collective_argument = argument;
  self.collective_mask = mask;
  self.operand = operand;
  Join(&warp, self);
  if (CompleteCollective(self)) {
    // The caller is runnable again. It continues, or another warp does.
    if (block->random.Below(block->turns.stay) != 0) {
      warp.runnable &= ~(1u << self.lane);
      if (warp.runnable == 0) block->ready &= ~(1u << self.warp);
      return;
    }
    Leave(/*other_warp=*/true);
    return;
  }
  Leave(/*other_warp=*/false);
}

void SyncBlock() {
  ++block->at_barrier;
  if (block->at_barrier == block->live_threads) {
    ReleaseBlockBarrier();
    MaybeYield();
    return;
  }
  Wait(kBlockBarrier, kNoDetail);
}

void ArriveCluster() {
  Thread& self = *current_thread;
  if (self.at_cluster_barrier) Fatal("a thread arrives twice at the barrier of its cluster");
  Block& first = OfCluster(0);
  self.at_cluster_barrier = true;
  self.cluster_phase = first.cluster_phase;
  if (is_checking) block->cluster_meeting.Arrive(&self.clock);
  std::uint32_t live = 0;
  for (std::uint32_t rank = 0; rank < launch->cluster_x; ++rank) {
    live += OfCluster(rank).live_threads;
  }
  if (++first.at_cluster_barrier == live) ReleaseCluster();
}

void WaitCluster() {
  Thread& self = *current_thread;
  if (!self.at_cluster_barrier) Fatal("a thread waits for its cluster and has not arrived");
  while (OfCluster(0).cluster_phase == self.cluster_phase) Wait(kClusterBarrier, kNoDetail);
  self.at_cluster_barrier = false;
  if (is_checking) Acquire(&self.clock, block->cluster_seen);
}

InBlock::InBlock(std::uint32_t rank) : from_(CurrentSlot()) {
  if (rank >= launch->cluster_x) {
    Fatal(absl::StrCat("rank ", rank, " of a cluster of ", launch->cluster_x, " blocks"));
  }
  Block& there = OfCluster(rank);
  if (there.live_threads == 0) {
    Fatal(absl::StrCat("block ", there.x, " of the cluster has ended already"));
  }
  Select(&there);
}
InBlock::~InBlock() {
  Select(&blocks[from_]);
}

void NoteArrivalFromOutside() {
  if (!is_checking) return;
  const Thread& self = *current_thread;
  block->from_outside[{self.block, self.index}] = self.clock.now;
}

void NamedBarrier(std::uint32_t id, std::uint32_t count, bool wait) {
  if (id == 0 || id > 15 || count == 0 || count % kWarpSize != 0) {
    Fatal("named barrier " + std::to_string(id) + " of " + std::to_string(count) +
          " threads: ids are 1 to 15, the number of threads a multiple of 32");
  }
  NamedBarrierState& barrier = block->named[id];
  if (barrier.threads != 0 && barrier.threads != count) {
    Fatal("named barrier " + std::to_string(id) + ": " + std::to_string(count) + " threads here, " +
          std::to_string(barrier.threads) + " elsewhere");
  }
  barrier.threads = count;
  if (is_checking) barrier.meeting.Arrive(&current_thread->clock);
  if (++barrier.arrived == count) {
    const SeenRef all = barrier.meeting.Finish();
    if (wait) Acquire(&current_thread->clock, all);
    for (Thread* thread : barrier.waiting) {
      Acquire(&thread->clock, all);
      MakeRunnable(thread);
    }
    barrier = {};
    MaybeYield();
    return;
  }
  if (!wait) return;
  barrier.waiting.push_back(current_thread);
  Wait("named barrier", id);
}

void Wait(const char* what, std::uint32_t detail) {
  current_thread->waits_for = what;
  current_thread->waits_detail = detail;
  Leave(/*other_warp=*/false);
}

void Wake(Thread* thread) {
  MakeRunnable(thread);
}

void AddLateWork(std::function<void()> work) {
  const std::uint32_t choice = block->random.Below(4);
  if (choice == 0) {
    work();
    return;
  }
  block->late.push_back({.run = std::move(work), .any_time = choice == 1});
}

}  // namespace quire::cuda_emulator
