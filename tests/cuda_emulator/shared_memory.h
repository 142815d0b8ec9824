#pragma once

// The shared memory of the running block is a buffer inside a window of its slot. The window's base
// behaves as aligned to 256 KiB, so that shared addresses (offsets in the window) and pointers
// agree in their low bits. The block's bytes start at a multiple of 16 that is never a multiple of
// 1024, and contain 0xFF when a block starts.

#include <cstddef>
#include <cstdint>

namespace quire::cuda_emulator {

inline constexpr std::uint32_t kSharedWindow = 256 * 1024;

struct AccessCell;

// Records for every four bytes of the window, while accesses are checked (access_check.h).
struct SharedBytes {
  std::uint8_t written[kSharedWindow / 4];  // one bit per byte
  std::uint8_t copies[kSharedWindow / 4];   // pending copies to them
  AccessCell* cells = nullptr;              // null before the first checked access
};
// The records of the running block's window.
extern SharedBytes* shared_bytes;

// Fills the block's bytes with 0xFF and selects their start.
void PrepareShared(std::uint32_t bytes, std::uint32_t start_choice);
// Aborts if bytes around the block's were written.
void CheckSharedGuards();

// Returns address 0 of the running block's window.
extern std::byte* shared_window;
// Makes the slot's window that of the running block.
void SelectSharedWindow(std::uint32_t slot);
// Returns the first byte, aligned to 16 bytes.
std::byte* SharedStart();
// The same, rounded up to a multiple of 1024. Aborts if the launch reserved no bytes for that.
std::byte* SharedStartAligned();

// Returns the shared address of `bytes` bytes at p. Aborts if one of them is outside the block's
// shared memory, or p is not aligned to `alignment`.
std::uint32_t SharedAddress(const void* p, std::uint32_t bytes, std::uint32_t alignment,
                            const char* what);
// Returns the bytes at a shared address, with the same checks.
std::byte* SharedPointer(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment,
                         const char* what);

// Fills bytes in shared memory with NaN, which are neither old nor new values during a copy.
void Poison(std::uint32_t address, std::uint32_t bytes);

// Returns whether p is anywhere in the running block's window.
inline bool IsSharedPointer(const void* p) {
  return p >= shared_window && p < shared_window + kSharedWindow;
}

}  // namespace quire::cuda_emulator
