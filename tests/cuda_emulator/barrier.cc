#include "tests/cuda_emulator/barrier.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

constexpr char kWaits[] = "mbarrier at shared address";
constexpr std::uint32_t kMaxCount = (1u << 20) - 1;  // maximum of arrivals and of bytes, PTX ISA
constexpr std::uint32_t kInitialized = 2;

// Encoded in 20 + 20 + 21 + 1 + 2 bits.
struct State {
  std::uint32_t expected;  // arrivals per phase
  std::uint32_t missing;   // arrivals
  std::int32_t bytes;      // announced bytes that have not arrived; negative if they arrive first
  std::uint32_t parity;
};

std::uint64_t Encode(const State& state) {
  return std::uint64_t{state.expected} | std::uint64_t{state.missing} << 20 |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(state.bytes) & 0x1fffffu) << 40 |
         std::uint64_t{state.parity} << 61 | std::uint64_t{kInitialized} << 62;
}

State Load(std::uint32_t at) {
  std::uint64_t bits;
  std::memcpy(&bits, SharedPointer(at, 8, 8, "mbarrier"), sizeof(bits));
  if (bits >> 62 != kInitialized || (bits & kMaxCount) == 0) {
    Fatal("the mbarrier at shared address " + std::to_string(at) +
          " is not initialized, or was overwritten");
  }
  // The shifts sign-extend the 21 bits.
  const auto bytes = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits >> 40) << 11) >> 11;
  return {.expected = static_cast<std::uint32_t>(bits & kMaxCount),
          .missing = static_cast<std::uint32_t>(bits >> 20 & kMaxCount),
          .bytes = bytes,
          .parity = static_cast<std::uint32_t>(bits >> 61 & 1)};
}

void Store(std::uint32_t at, const State& state) {
  const std::uint64_t bits = Encode(state);
  std::memcpy(SharedPointer(at, 8, 8, "mbarrier"), &bits, sizeof(bits));
}

void WakeWaiters(std::uint32_t at) {
  std::vector<Thread>& threads = Threads();
  for (std::uint32_t i = 0; i < NumThreads(); ++i) {
    if (threads[i].waits_for == kWaits && threads[i].waits_detail == at) Wake(&threads[i]);
  }
}

// Stores the state and advances to the next phase if this one is complete.
void Settle(std::uint32_t at, State state) {
  if (state.missing == 0 && state.bytes < 0) {
    Fatal("mbarrier at shared address " + std::to_string(at) + ": " + std::to_string(-state.bytes) +
          " bytes more landed than were announced");
  }
  const bool complete = state.missing == 0 && state.bytes == 0;
  if (complete) {
    if (is_checking) {
      MbarrierClock& clock = MbarrierClockAt(at);
      clock.complete[state.parity] = clock.arrived.Finish();
    }
    state.missing = state.expected;
    state.parity ^= 1;
  }
  Store(at, state);
  if (complete) WakeWaiters(at);
}

void CheckBytes(std::uint32_t at, std::int64_t bytes) {
  if (bytes >= -std::int64_t{kMaxCount} && bytes <= std::int64_t{kMaxCount}) return;
  Fatal("mbarrier at shared address " + std::to_string(at) + ": " + std::to_string(bytes) +
        " bytes under way, the limit is " + std::to_string(kMaxCount));
}

}  // namespace

std::uint32_t BarrierAddress(const void* barrier) {
  return SharedAddress(barrier, 8, 8, "mbarrier");
}

void InitBarrier(void* barrier, std::uint32_t arrivals) {
  if (arrivals == 0 || arrivals > kMaxCount) {
    Fatal("an mbarrier of " + std::to_string(arrivals) + " arrivals, 1 to " +
          std::to_string(kMaxCount) + " are possible");
  }
  const std::uint32_t at = BarrierAddress(barrier);
  CheckShared(*current_thread, at, 8, Access::kWrite, __builtin_return_address(0));
  if (is_checking) {
    MbarrierClock& clock = MbarrierClockAt(at);
    clock = {.member = clock.member, .copies = clock.copies, .arrived = {}, .complete = {}};
  }
  Store(at, {.expected = arrivals, .missing = arrivals, .bytes = 0, .parity = 0});
}

namespace {

void Arrive(std::uint32_t at, std::uint32_t bytes) {
  State state = Load(at);
  if (state.missing == 0) {
    Fatal("an arrival beyond the " + std::to_string(state.expected) +
          " of this phase at the mbarrier at shared address " + std::to_string(at));
  }
  CheckBytes(at, std::int64_t{state.bytes} + bytes);
  state.bytes += static_cast<std::int32_t>(bytes);
  --state.missing;
  Settle(at, state);
}

}  // namespace

void ArriveBarrier(void* barrier, std::uint32_t bytes) {
  const std::uint32_t at = BarrierAddress(barrier);
  CheckShared(*current_thread, at, 8, Access::kRead, __builtin_return_address(0));
  if (is_checking) MbarrierClockAt(at).arrived.Arrive(&current_thread->clock);
  Arrive(at, bytes);
}

void ArriveBarrierIn(std::uint32_t rank, void* barrier) {
  const void* const code = __builtin_return_address(0);
  const std::uint32_t at = BarrierAddress(barrier);
  Thread& self = *current_thread;
  const InBlock there(rank);
  CheckShared(self, at, 8, Access::kRead, code);
  if (is_checking) {
    Meeting& arrived = MbarrierClockAt(at).arrived;
    if (self.block == CurrentBlockNumber()) {
      arrived.Arrive(&self.clock);
    } else {
      NoteArrivalFromOutside();
      arrived.ArriveFrom(self.block, &self.clock, CurrentBlockNumber());
    }
  }
  Arrive(at, 0);
}

void ArriveBarrierFor(std::uint32_t barrier, const SeenRef& seen) {
  if (is_checking) MbarrierClockAt(barrier).arrived.Arrive(seen);
  Arrive(barrier, 0);
}

void WaitBarrier(void* barrier, std::uint32_t parity) {
  if (parity > 1) Fatal("a wait for parity " + std::to_string(parity));
  const std::uint32_t at = BarrierAddress(barrier);
  CheckShared(*current_thread, at, 8, Access::kRead, __builtin_return_address(0));
  while (Load(at).parity == parity) Wait(kWaits, at);
  if (is_checking) Acquire(&current_thread->clock, MbarrierClockAt(at).complete[parity]);
}

void CompleteCopy(std::uint32_t barrier, std::uint32_t address, std::uint32_t bytes,
                  const void* code) {
  State state = Load(barrier);
  if (is_checking) {
    MbarrierClock& clock = MbarrierClockAt(barrier);
    EndCopy(address, bytes, clock.member, ++clock.copies, code);
    clock.arrived.Arrive(clock.member, clock.copies, NumMembers(NumThreads()));
  }
  CheckBytes(barrier, std::int64_t{state.bytes} - bytes);
  state.bytes -= static_cast<std::int32_t>(bytes);
  Settle(barrier, state);
}

}  // namespace quire::cuda_emulator
