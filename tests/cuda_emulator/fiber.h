#pragma once

// Stacks, and the switch between fibers. Sanitizers do not support these switches, so emulated
// tests do not run under them.

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Gives `thread` a new fiber on the stack of its slot and index. `entry` runs on it and never
// returns.
void PrepareFiber(Thread* thread, void (*entry)());

// Switches from `self` to `next`. Returns when a fiber switches back to `self`, which none does if
// `self` has ended.
void SwitchFiber(Thread* self, Thread* next);

// The stacks of all fibers, in one piece. Null before the first fiber. An inaccessible page
// precedes each stack.
inline constexpr std::size_t kFiberStackPage = 4096;
inline constexpr std::size_t kFiberStackSlot = 256 * 1024 + kFiberStackPage;
extern std::byte* fiber_stacks;
inline bool IsFiberStack(const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= fiber_stacks && at < fiber_stacks + kFiberStackSlot * kMaxFibers;
}
// Returns the number of the stack that contains `address`, or kMaxFibers if none does.
std::uint32_t StackOf(const void* address);

}  // namespace quire::cuda_emulator
