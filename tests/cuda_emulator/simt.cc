#include "tests/cuda_emulator/simt.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"

namespace quire::cuda_emulator {

Thread* current_thread = nullptr;

namespace {

constexpr std::uint32_t kNoDetail = ~0u;
constexpr char kBlockBarrier[] = "SyncBlock";

struct Warp {
  std::uint32_t runnable = 0;  // lanes that could run now
  std::uint32_t live = 0;      // lanes that have not ended
  std::uint32_t joined = 0;    // lanes that wait in a collective
  // Whether all of them wait in the same one, and the first lane there.
  bool same = true;
  std::uint32_t first_joined = 0;
};

struct NamedBarrierState {
  std::uint32_t threads = 0;  // 0: no thread there
  std::uint32_t arrived = 0;
  std::vector<Thread*> waiting;
};

struct LateWork {
  std::function<void()> run;
  bool any_time = false;
};

// How the threads of one block take turns, drawn once per block.
struct Turns {
  bool descending = false;  // lanes of a warp
  std::uint32_t stay = 1;   // a warp goes on past a collective with chance 1 - 1 / stay; 1: never
};

struct Block {
  const KernelLaunch* launch = nullptr;
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  Random random;
  Turns turns;
  Warp warps[kMaxWarps];
  std::uint32_t num_warps = 0;
  std::uint32_t ready = 0;  // warps with a runnable lane
  std::uint32_t live_threads = 0;
  std::uint32_t at_barrier = 0;
  NamedBarrierState named[16];
  std::vector<LateWork> late;
};

Block block;
std::vector<Thread> threads;
// The thread that starts kernels, with an index that no other has.
Thread main_thread;
SimtCounters counters;
// Whether a thread of the launch has waited for the kernel in front.
bool waited_in_front = false;

void MakeRunnable(Thread* thread) {
  thread->waits_for = nullptr;
  block.warps[thread->warp].runnable |= 1u << thread->lane;
  block.ready |= 1u << thread->warp;
}

// The next set bit of `bits` at or above (below) `from`, in a circle. REQUIRES: bits is not 0.
std::uint32_t NextBit(std::uint32_t bits, std::uint32_t from) {
  const std::uint32_t above = bits >> from << from;
  return static_cast<std::uint32_t>(std::countr_zero(above != 0 ? above : bits));
}
std::uint32_t BitBefore(std::uint32_t bits, std::uint32_t from) {
  const std::uint32_t below = bits << (31 - from) >> (31 - from);
  return 31 - static_cast<std::uint32_t>(std::countl_zero(below != 0 ? below : bits));
}

Thread* Take(std::uint32_t warp_index, std::uint32_t from_lane) {
  Warp& warp = block.warps[warp_index];
  const std::uint32_t lane = block.turns.descending ? BitBefore(warp.runnable, from_lane)
                                                    : NextBit(warp.runnable, from_lane);
  warp.runnable &= ~(1u << lane);
  if (warp.runnable == 0) block.ready &= ~(1u << warp_index);
  return &threads[warp_index * kWarpSize + lane];
}

std::string Lanes(std::uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "%08x", mask);
  return text;
}

// What every warp waits for.
std::string Waiting() {
  std::string text;
  for (std::uint32_t w = 0; w < block.num_warps; ++w) {
    std::map<std::string, std::uint32_t> groups;
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const std::uint32_t index = w * kWarpSize + lane;
      if (index >= block.launch->threads) continue;
      const Thread& thread = threads[index];
      std::string what = "have ended";
      if ((block.warps[w].live >> lane & 1u) != 0) {
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
  std::swap(block.late[i], block.late.back());
  const std::function<void()> run = std::move(block.late.back().run);
  block.late.pop_back();
  run();
}

void MaybeRunLateWork() {
  if (block.late.empty() || block.random.Below(4) != 0) return;
  const std::size_t i = block.random.Below(static_cast<std::uint32_t>(block.late.size()));
  if (block.late[i].any_time) RunLateWork(i);
}

// Who runs next, when the caller does not.
Thread* Next(const Thread& self, bool other_warp) {
  if (!other_warp && block.warps[self.warp].runnable != 0) {
    return Take(self.warp, self.lane);
  }
  MaybeRunLateWork();
  while (block.ready == 0) {
    if (block.late.empty()) Fatal("deadlock" + Waiting());
    RunLateWork(block.random.Below(static_cast<std::uint32_t>(block.late.size())));
  }
  return Take(NextBit(block.ready, block.random.Below(32)), block.random.Below(32));
}

void Leave(bool other_warp, bool ends) {
  Thread* const self = current_thread;
  Thread* const next = Next(*self, other_warp);
  if (next == self) return;
  ++counters.switches;
  SwitchFiber(self, next, ends);
}

// After a collective or a barrier: sometimes another warp goes on first.
void MaybeYield() {
  if (block.ready == 0 || block.random.Below(block.turns.stay + 1) != 0) return;
  MakeRunnable(current_thread);
  Leave(/*other_warp=*/true, /*ends=*/false);
}

bool SameCollective(const Thread& a, const Thread& b) {
  return a.collective == b.collective && a.collective_mask == b.collective_mask &&
         a.collective_argument == b.collective_argument;
}

// Ends the process when one of `lanes` has joined another collective than `self`.
void CheckSameCollective(const Warp& warp, const Thread& self, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes & warp.joined; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    const Thread& other = threads[self.warp * kWarpSize + lane];
    if (SameCollective(self, other)) continue;
    Fatal(absl::StrCat("lanes of one warp meet in different collectives: lane ", self.lane, " in ",
                       self.waits_for, " of ", Lanes(self.collective_mask), ", lane ", other.lane,
                       " in ", other.waits_for, " of ", Lanes(other.collective_mask)));
  }
}

// Adds the lane to those that wait.
void Join(Warp* warp, const Thread& self) {
  if (warp->joined == 0) {
    warp->same = true;
    warp->first_joined = self.lane;
  } else if (warp->same) {
    warp->same = SameCollective(self, threads[self.warp * kWarpSize + warp->first_joined]);
  }
  if (!warp->same) CheckSameCollective(*warp, self, self.collective_mask & warp->live);
  warp->joined |= 1u << self.lane;
}

// Runs the collective that `first` has joined if all lanes it needs are there.
bool CompleteCollective(const Thread& first) {
  Warp& warp = block.warps[first.warp];
  const std::uint32_t lanes = first.collective_mask & warp.live;
  if (lanes == 0 || (warp.joined & lanes) != lanes) return false;
  if (!warp.same) CheckSameCollective(warp, first, lanes);
  const void* const function = first.collective;
  const std::uint64_t argument = first.collective_argument;
  void* operands[kWarpSize] = {};
  Thread* const base = &threads[first.warp * kWarpSize];
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    operands[lane] = base[lane].operand;
    base[lane].collective = nullptr;
    MakeRunnable(&base[lane]);
  }
  warp.joined &= ~lanes;
  ++counters.collectives;
  reinterpret_cast<CollectiveFunction>(const_cast<void*>(function))(operands, lanes, argument);
  return true;
}

void ReleaseBlockBarrier() {
  block.at_barrier = 0;
  for (std::uint32_t i = 0; i < block.launch->threads; ++i) {
    if (threads[i].waits_for == kBlockBarrier) MakeRunnable(&threads[i]);
  }
}

// The end of a thread may be what others wait for.
void ThreadEnded() {
  Thread* const self = current_thread;
  if (!self->products.empty()) Fatal("a thread ends with wgmma products under way");
  Warp& warp = block.warps[self->warp];
  warp.live &= ~(1u << self->lane);
  --block.live_threads;
  if (block.live_threads == 0) {
    if (!block.late.empty()) Fatal("the block ends with bulk copies under way");
    SwitchFiber(self, &main_thread, /*ends=*/true);
  }
  for (std::uint32_t rest = warp.joined; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (CompleteCollective(threads[self->warp * kWarpSize + lane])) break;
  }
  if (block.at_barrier == block.live_threads) ReleaseBlockBarrier();
  Leave(/*other_warp=*/false, /*ends=*/true);
}

void ThreadMain() {
  block.launch->body();
  ThreadEnded();
}

void StartThreads() {
  const std::uint32_t n = block.launch->threads;
  block.num_warps = (n + kWarpSize - 1) / kWarpSize;
  block.live_threads = n;
  block.at_barrier = 0;
  for (NamedBarrierState& barrier : block.named) barrier = {};
  block.late.clear();
  block.ready = 0;
  for (Warp& warp : block.warps) warp = {};
  if (threads.empty()) threads.resize(kMaxThreads);
  for (std::uint32_t i = 0; i < n; ++i) {
    Thread& thread = threads[i];
    thread.index = i;
    thread.lane = i % kWarpSize;
    thread.warp = i / kWarpSize;
    thread.collective = nullptr;
    thread.copies.clear();
    thread.copy_groups = 0;
    thread.products.clear();
    thread.product_groups = 0;
    thread.product_fence = false;
    thread.products_waited = false;
    PrepareFiber(&thread, ThreadMain);
    block.warps[thread.warp].live |= 1u << thread.lane;
    MakeRunnable(&thread);
  }
}

void RunBlock(std::uint32_t x, std::uint32_t y, std::uint64_t seed) {
  block.x = x;
  block.y = y;
  block.random = Random(seed);
  constexpr std::uint32_t kStay[] = {1, 3, 1u << 20};
  block.turns = {.descending = block.random.Below(2) == 1, .stay = kStay[block.random.Below(3)]};
  PrepareShared(block.launch->shared_bytes, block.random.Below(63));
  StartThreads();
  main_thread.index = kMaxThreads;
  current_thread = &main_thread;
  SwitchFiber(&main_thread,
              Take(NextBit(block.ready, block.random.Below(32)), block.random.Below(32)),
              /*ends=*/false);
  current_thread = nullptr;
  CheckSharedGuards();
}

}  // namespace

void RunKernel(const KernelLaunch& launch, std::uint64_t seed) {
  block.launch = &launch;
  waited_in_front = false;
  Random random(seed);
  std::vector<std::uint32_t> order(launch.blocks_x * launch.blocks_y);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Below(static_cast<std::uint32_t>(i))]);
  }
  for (const std::uint32_t i : order) {
    RunBlock(i % launch.blocks_x, i / launch.blocks_x, random.Next());
  }
  if (launch.programmatic && !waited_in_front) {
    Fatal("launched to overlap the kernel in front, but no thread has called DependencyWait");
  }
  block.launch = nullptr;
}

void WaitForKernelInFront() {
  waited_in_front = true;
}

bool InKernel() {
  return block.launch != nullptr;
}

std::string Where() {
  if (!InKernel()) return "outside kernels";
  std::string text =
      absl::StrCat("kernel ", block.launch->name, ", block (", block.x, ", ", block.y, ")");
  if (current_thread != nullptr && current_thread != &main_thread) {
    absl::StrAppend(&text, ", thread ", current_thread->index);
  }
  return text;
}

void Fatal(const std::string& message) {
  std::fprintf(stderr, "CUDA emulator: %s: %s\n", Where().c_str(), message.c_str());
  std::fflush(stderr);
  std::abort();
}

const KernelLaunch& CurrentLaunch() {
  return *block.launch;
}
std::uint32_t CurrentBlockX() {
  return block.x;
}
std::uint32_t CurrentBlockY() {
  return block.y;
}
Random& BlockRandom() {
  return block.random;
}
std::vector<Thread>& Threads() {
  return threads;
}
std::uint32_t NumThreads() {
  return block.launch->threads;
}
SimtCounters GetSimtCounters() {
  return counters;
}

void WarpCollective(const char* name, CollectiveFunction function, std::uint64_t argument,
                    std::uint32_t mask, void* operand, bool all_live) {
  Thread& self = *current_thread;
  Warp& warp = block.warps[self.warp];
  if ((mask >> self.lane & 1u) == 0) {
    Fatal(std::string(name) + ": lane " + std::to_string(self.lane) + " is not in its own mask " +
          Lanes(mask));
  }
  if (all_live && warp.live != 0xffffffffu) {
    Fatal(std::string(name) + " needs all 32 lanes, there are " + Lanes(warp.live));
  }
  self.waits_for = name;
  self.waits_detail = kNoDetail;
  self.collective = reinterpret_cast<const void*>(function);
  self.collective_argument = argument;
  self.collective_mask = mask;
  self.operand = operand;
  Join(&warp, self);
  if (CompleteCollective(self)) {
    // The caller is runnable again; it goes on, or another warp does.
    if (block.random.Below(block.turns.stay) != 0) {
      warp.runnable &= ~(1u << self.lane);
      if (warp.runnable == 0) block.ready &= ~(1u << self.warp);
      return;
    }
    Leave(/*other_warp=*/true, /*ends=*/false);
    return;
  }
  Leave(/*other_warp=*/false, /*ends=*/false);
}

void SyncBlock() {
  ++block.at_barrier;
  if (block.at_barrier == block.live_threads) {
    ReleaseBlockBarrier();
    MaybeYield();
    return;
  }
  Wait(kBlockBarrier, kNoDetail);
}

void NamedBarrier(std::uint32_t id, std::uint32_t count, bool wait) {
  if (id == 0 || id > 15 || count == 0 || count % kWarpSize != 0) {
    Fatal("named barrier " + std::to_string(id) + " of " + std::to_string(count) +
          " threads: ids are 1 to 15, the number of threads a multiple of 32");
  }
  NamedBarrierState& barrier = block.named[id];
  if (barrier.threads != 0 && barrier.threads != count) {
    Fatal("named barrier " + std::to_string(id) + ": " + std::to_string(count) + " threads here, " +
          std::to_string(barrier.threads) + " elsewhere");
  }
  barrier.threads = count;
  if (++barrier.arrived == count) {
    for (Thread* thread : barrier.waiting) MakeRunnable(thread);
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
  Leave(/*other_warp=*/false, /*ends=*/false);
}

void Wake(Thread* thread) {
  MakeRunnable(thread);
}

void AddLateWork(std::function<void()> work) {
  const std::uint32_t choice = block.random.Below(4);
  if (choice == 0) {
    work();
    return;
  }
  block.late.push_back({.run = std::move(work), .any_time = choice == 1});
}

}  // namespace quire::cuda_emulator
