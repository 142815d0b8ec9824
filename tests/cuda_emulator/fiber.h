#pragma once

// Stacks, and the switch from one fiber to another. The sanitizers do not know of these switches,
// so emulated tests are not among those that run under them.

#include <cstdint>

#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

// Gives `thread` a fresh fiber on the stack of its slot and index; `entry` runs on it and never
// returns.
void PrepareFiber(Thread* thread, void (*entry)());

// Goes from `self` to where `next` stands; returns when a fiber goes to `self` again. With `ends`,
// none does.
void SwitchFiber(Thread* self, Thread* next, bool ends);

// The number of the stack that holds `address`, kMaxFibers when none does.
std::uint32_t StackOf(const void* address);

}  // namespace quire::cuda_emulator
