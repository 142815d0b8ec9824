#pragma once

// Instructions by concept. Each function returns the step of an instruction that it implements, and
// an empty step for others. It reports unknown variants of its own instructions to the form. The
// semantics are those of the PTX ISA. Effects beyond one thread are delegated to the emulator's
// models.

#include <cstdint>

#include "tests/cuda_emulator/ptx/form.h"

namespace quire::cuda_emulator::ptx {

// Moves, integers, floats, conversions, comparisons, branches.
Step DecodeArithmetic(Form* form);
// Loads, stores, atomics, addresses, fences.
Step DecodeMemory(Form* form);
// Shuffles, votes, barriers of threads, matrices of a warp.
Step DecodeWarp(Form* form);
// cp.async, mbarrier, bulk copies, warpgroup products, overlapping launches, register budgets.
Step DecodeAsync(Form* form);

// Returns the bytes at a shared address without checks, for addresses that another model checks.
std::byte* AtShared(std::uint64_t address);

// Records modifiers that do not affect values here (Program::TakeHints): "cp.async.cg". The second
// function is for an L2 policy and checks that it is one that the wrappers name: "L2 evict_first".
void Hint(Frame& frame, const char* name);
void HintPolicy(Frame& frame, std::uint64_t policy);

}  // namespace quire::cuda_emulator::ptx
