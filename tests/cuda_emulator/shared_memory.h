#pragma once

// The shared memory of the block that runs: a buffer inside a window of its slot whose base behaves
// as aligned to 256 KiB, so that shared addresses (offsets in the window) and pointers agree in
// their low bits. The block's bytes start at a multiple of 16 that is never one of 1024, and hold
// 0xFF when a block starts.

#include <cstddef>
#include <cstdint>

namespace quire::cuda_emulator {

inline constexpr std::uint32_t kSharedWindow = 256 * 1024;

// Of every four bytes of the window, while accesses are checked (access_check.h).
struct SharedBytes {
  std::uint8_t written[kSharedWindow / 4];  // a bit a byte
  std::uint8_t copies[kSharedWindow / 4];   // under way to them
};
SharedBytes& CurrentSharedBytes();

// Fills the block's bytes with 0xFF and picks where they start.
void PrepareShared(std::uint32_t bytes, std::uint32_t start_choice);
// Ends the process when bytes around the block's were written.
void CheckSharedGuards();

// Address 0 of the window of the block that runs.
extern std::byte* shared_window;
// Makes the window of the slot that of the block that runs.
void SelectSharedWindow(std::uint32_t slot);
// First byte, 16-byte aligned.
std::byte* SharedStart();
// The same rounded up to a multiple of 1024. Ends the process when the launch reserved nothing for
// that.
std::byte* SharedStartAligned();

// The shared address of `bytes` bytes at p; ends the process when one of them lies outside the
// block's shared memory, or p is not aligned to `alignment`.
std::uint32_t SharedAddress(const void* p, std::uint32_t bytes, std::uint32_t alignment,
                            const char* what);
// The bytes behind a shared address, with the same checks.
std::byte* SharedPointer(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment,
                         const char* what);

// Makes bytes in shared memory NaN: neither old nor new values while a copy is under way.
void Poison(std::uint32_t address, std::uint32_t bytes);

// Whether p lies anywhere in the window of the block that runs.
inline bool IsSharedPointer(const void* p) {
  return p >= shared_window && p < shared_window + kSharedWindow;
}

}  // namespace quire::cuda_emulator
