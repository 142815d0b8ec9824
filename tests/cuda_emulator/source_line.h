#pragma once

// Where in the sources a piece of machine code comes from, by addr2line of binutils; for messages
// that end the process.

#include <cstdint>
#include <string>

namespace quire::cuda_emulator {

// Offsets from where the program was loaded.
std::uint32_t CodeOffset(const void* code);
const void* CodeAt(std::uint32_t offset);

// "kernels/norm/norm_cuda.cu:88" of the call that returns to `code`; of inlined code the innermost
// line outside the emulator. "an unknown line" without debug information.
std::string LineOf(const void* code);
// The line of a kernel, or of a test, that led to where the calling thread is.
std::string LineHere();

// Whether the call is made by a kernel, not by an inline function of a library that the emulator's
// own code shares with it.
bool IsKernelCode(const void* code);

// Whether p lies in the program's own code or data, where constants are.
bool IsInProgram(const void* p);

}  // namespace quire::cuda_emulator
