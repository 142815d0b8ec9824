#pragma once

// Instructions by concept. Each function returns the step of an instruction of its own and an empty
// step for one of another; what it does not know of its own it reports to the form. The meaning is
// that of the PTX ISA; what goes beyond one thread is asked of the emulator's models.

#include <cstdint>

#include "tests/cuda_emulator/ptx/form.h"

namespace quire::cuda_emulator::ptx {

// Moves, integers, floats, conversions, comparisons, branches.
Step DecodeArithmetic(Form* form);
// Loads, stores, atomics, addresses, fences.
Step DecodeMemory(Form* form);
// Shuffles, votes, barriers of threads, matrices of a warp.
Step DecodeWarp(Form* form);
// cp.async, mbarrier, bulk copies, warpgroup products, launches that overlap, register budgets.
Step DecodeAsync(Form* form);

// The bytes behind a shared address, unchecked: for addresses whose use another model checks.
std::byte* AtShared(std::uint64_t address);

// Notes what has no effect on values here (Program::TakeHints): "cp.async.cg". The second is for a
// policy of L2 and checks that it is one of those that the wrappers name: "L2 evict_first".
void Hint(Frame& frame, const char* name);
void HintPolicy(Frame& frame, std::uint64_t policy);

}  // namespace quire::cuda_emulator::ptx
