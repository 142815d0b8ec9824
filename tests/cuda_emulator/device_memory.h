#pragma once

// Memory of the emulated device and page-locked host memory. Each block ends at a page that no
// thread may touch, starts behind one, and is filled with 0xFF, so that a kernel that reads
// unwritten bytes computes NaN and one that leaves its memory is caught. The host may touch memory
// of the device through the runtime only.
//
// Threads: callers hold the runtime's lock, or run inside a kernel.

#include <cstddef>
#include <cstdint>
#include <string>

namespace quire::cuda_emulator {

// Both kinds lie in one range of addresses; null before the first block.
inline constexpr std::uint64_t kDeviceArenaBytes = std::uint64_t{64} << 30;
extern std::byte* device_arena;
inline bool IsInDeviceArena(const void* p) {
  return device_arena != nullptr && p >= device_arena && p < device_arena + kDeviceArenaBytes;
}

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
// The same for shared memory too.
std::string DescribeMemory(const void* p);

// While one exists, memory of the device can be touched: kernels, copies and fills run.
class DeviceMemoryAccess {
 public:
  DeviceMemoryAccess();
  ~DeviceMemoryAccess();
  DeviceMemoryAccess(const DeviceMemoryAccess&) = delete;
  DeviceMemoryAccess& operator=(const DeviceMemoryAccess&) = delete;
};
// Behind one access of so many, the host cannot touch it until the next one begins.
void CloseDeviceMemoryEvery(std::uint32_t times);
// Whether the host may touch it at any time (EmulatorOptions).
void LetHostTouchDeviceMemory(bool may);

// Makes an access that hits a page that may not be touched end the process with DescribeAddress.
void InstallFaultMessage();

}  // namespace quire::cuda_emulator
