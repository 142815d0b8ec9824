#pragma once

// Memory of the emulated device and page-locked host memory. Each block lies between inaccessible
// guard pages and is filled with 0xFF. A kernel that reads unwritten bytes computes NaN, and one
// that leaves its memory is detected. The host may access device memory through the runtime only.
//
// Threads: callers hold the runtime's lock, or run inside a kernel.

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire::cuda_emulator {

// Both kinds are in one address range. Null before the first block.
inline constexpr std::uint64_t kDeviceArenaBytes = std::uint64_t{64} << 30;
extern std::byte* device_arena;
inline bool IsInDeviceArena(const void* p) {
  return device_arena != nullptr && p >= device_arena && p < device_arena + kDeviceArenaBytes;
}

enum class MemoryKind : std::uint8_t { kPageable, kPinned, kDevice };

// Allocates memory aligned to 256 bytes. Returns null if the system refuses.
void* AllocateMemory(MemoryKind kind, std::uint64_t bytes);
// Returns false if p is not a block of this kind. Aborts if bytes around the block were written.
bool FreeMemory(MemoryKind kind, void* p);

MemoryKind KindOf(const void* p);
// Returns whether [p, p + bytes) is in one block of device or pinned memory.
bool IsDeviceReadable(const void* p, std::uint64_t bytes);
// The same for memory of any kind. True for pageable memory.
bool IsInsideBlock(const void* p, std::uint64_t bytes);

std::uint64_t DeviceBytesInUse();
// "0x7f..., 16 bytes behind a block of 4096 bytes of device memory".
std::string DescribeAddress(const void* p);
// The same, also for shared memory.
std::string DescribeMemory(const void* p);

// Device memory is accessible while an object exists, so that kernels, copies and fills can run.
class DeviceMemoryAccess {
 public:
  DeviceMemoryAccess();
  ~DeviceMemoryAccess();
  DeviceMemoryAccess(const DeviceMemoryAccess&) = delete;
  DeviceMemoryAccess& operator=(const DeviceMemoryAccess&) = delete;
};
// After one access out of `times`, the host cannot access device memory until the next access.
void CloseDeviceMemoryEvery(std::uint32_t times);
// Sets whether the host may access device memory at any time (EmulatorOptions).
void LetHostTouchDeviceMemory(bool may);

// Makes an access to a protected page abort the process with the text of DescribeAddress.
void InstallFaultMessage();

}  // namespace quire::cuda_emulator
