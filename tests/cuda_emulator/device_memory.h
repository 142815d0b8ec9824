#pragma once

// Memory of the emulated device and page-locked host memory. Each block ends at a page that no
// thread may touch, starts behind one, and is filled with 0xFF, so that a kernel that reads
// unwritten bytes computes NaN and one that leaves its memory is caught.
//
// Threads: callers hold the runtime's lock, or run inside a kernel.

#include <cstdint>
#include <string>

namespace quire::cuda_emulator {

enum class MemoryKind : std::uint8_t { kPageable, kPinned, kDevice };

// Null when the system refuses. Aligned to 256 bytes.
void* AllocateMemory(MemoryKind kind, std::uint64_t bytes);
// False when p is no block of this kind. Ends the process when bytes around the block were written.
bool FreeMemory(MemoryKind kind, void* p);

MemoryKind KindOf(const void* p);
// Whether [p, p + bytes) lies in one block of device or pinned memory.
bool IsDeviceReadable(const void* p, std::uint64_t bytes);
// The same for memory of any kind: true for pageable memory.
bool IsInsideBlock(const void* p, std::uint64_t bytes);

std::uint64_t DeviceBytesInUse();
// "0x7f..., 16 bytes behind a block of 4096 bytes of device memory".
std::string DescribeAddress(const void* p);

// Makes an access of a kernel that hits a guard page end the process with DescribeAddress.
void InstallFaultMessage();

}  // namespace quire::cuda_emulator
