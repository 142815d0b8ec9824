#pragma once

// Maps machine code to source lines with addr2line of binutils, for messages that abort the
// process.

#include <cstdint>
#include <string>

namespace quire::cuda_emulator {

// Offsets from the load address of the program.
std::uint32_t CodeOffset(const void* code);
const void* CodeAt(std::uint32_t offset);

// Returns "kernels/norm/norm_cuda.cu:88" for the call that returns to `code`. For inlined code it
// is the innermost line outside the emulator. Without debug information it is "an unknown line".
std::string LineOf(const void* code);
// Returns the line of a kernel or a test that led to the calling thread's position.
std::string LineHere();

// Returns whether a kernel makes the call, and not an inline library function that the emulator's
// own code shares with it.
bool IsKernelCode(const void* code);

// Returns whether p is in the program's own code or data, where constants are.
bool IsInProgram(const void* p);

}  // namespace quire::cuda_emulator
