#pragma once

// Stacks, and the switch between fibers. Sanitizers do not support these switches, so emulated
// tests do not run under them.

#include <cstdint>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Gives `thread` a new fiber on the stack of its slot and index. `entry` runs on it and never
// returns.
void PrepareFiber(Thread* thread, void (*entry)());

// Switches from `self` to `next`. Returns when a fiber switches back to `self`. With `ends` none
// does.
void SwitchFiber(Thread* self, Thread* next, bool ends);

// Returns the number of the stack that contains `address`, or kMaxFibers if none does.
std::uint32_t StackOf(const void* address);

}  // namespace quire::cuda_emulator
