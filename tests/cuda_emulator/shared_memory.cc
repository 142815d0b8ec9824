#include "tests/cuda_emulator/shared_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

std::byte* shared_window = nullptr;
SharedBytes* shared_bytes = nullptr;

namespace {

constexpr std::uint32_t kWindow = kSharedWindow;
constexpr std::uint32_t kPoison = 0xff;
constexpr std::uint32_t kGuard = 4096;  // checked after the block's bytes
constexpr std::uint32_t kFirst = 1024;  // bytes of guard before the block's bytes

struct Window {
  std::byte* base = nullptr;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  SharedBytes bytes;
};

Window* NewWindow() {
  // The window, its alignment, and inaccessible pages after it.
  void* raw = mmap(nullptr, 3 * kWindow, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) {
    std::perror("shared memory of emulated blocks");
    std::abort();
  }
  const auto at = reinterpret_cast<std::uintptr_t>(raw);
  auto* base = static_cast<std::byte*>(raw) + (kWindow - at % kWindow) % kWindow;
  if (mprotect(base, kWindow, PROT_READ | PROT_WRITE) != 0) std::abort();
  std::memset(base, kPoison, kWindow);
  auto* const window = new Window;
  window->base = base;
  return window;
}

Window* current = nullptr;

Window& TheWindow() {
  return *current;
}

std::uint32_t GuardEnd(const Window& window) {
  return window.end + kGuard < kWindow ? window.end + kGuard : kWindow;
}

}  // namespace

void PrepareShared(std::uint32_t bytes, std::uint32_t start_choice) {
  Window& window = TheWindow();
  window.begin = kFirst + 16 * (1 + start_choice % 63);
  window.end = window.begin + bytes;
  std::memset(window.base, kPoison, GuardEnd(window));
  if (!is_checking) return;
  std::memset(window.bytes.written, 0, GuardEnd(window) / 4);
  std::memset(window.bytes.copies, 0, GuardEnd(window) / 4);
}

void CheckSharedGuards() {
  const Window& window = TheWindow();
  const auto check = [&](std::uint32_t begin, std::uint32_t end, const char* where) {
    // Checks that each byte equals the next one and that the first is correct.
    if (begin == end ||
        (window.base[begin] == std::byte{kPoison} &&
         std::memcmp(window.base + begin, window.base + begin + 1, end - begin - 1) == 0)) {
      return;
    }
    for (std::uint32_t i = begin; i < end; ++i) {
      if (window.base[i] == std::byte{kPoison}) continue;
      Fatal("shared memory " + std::string(where) + " the " +
            std::to_string(window.end - window.begin) +
            " bytes of the block was written, at byte " +
            std::to_string(static_cast<std::int64_t>(i) - window.begin));
    }
  };
  check(0, window.begin, "before");
  check(window.end, GuardEnd(window), "behind");
}

void SelectSharedWindow(std::uint32_t slot) {
  static Window* windows[kMaxResidentBlocks] = {};  // never destroyed
  if (windows[slot] == nullptr) windows[slot] = NewWindow();
  current = windows[slot];
  shared_window = current->base;
  shared_bytes = &current->bytes;
}

std::byte* SharedStart() {
  const Window& window = TheWindow();
  return window.base + window.begin;
}

std::byte* SharedStartAligned() {
  const Window& window = TheWindow();
  const std::uint32_t aligned = (window.begin + 1023) / 1024 * 1024;
  if (aligned > window.end) {
    Fatal(
        "SharedMemory() needs kSharedAlignment bytes more than the kernel uses, the launch "
        "reserved " +
        std::to_string(window.end - window.begin));
  }
  return window.base + aligned;
}

namespace {

[[noreturn]] [[gnu::cold]] void ReportAddress(std::int64_t at, std::uint32_t bytes,
                                              std::uint32_t alignment, const char* what) {
  const Window& window = TheWindow();
  if (at < window.begin || at + bytes > window.end) {
    Fatal(std::string(what) + ": " + std::to_string(bytes) + " bytes at byte " +
          std::to_string(at - window.begin) + " are outside the " +
          std::to_string(window.end - window.begin) + " bytes of shared memory");
  }
  Fatal(std::string(what) + ": shared address " + std::to_string(at) + " is not a multiple of " +
        std::to_string(alignment));
}

}  // namespace

std::uint32_t SharedAddress(const void* p, std::uint32_t bytes, std::uint32_t alignment,
                            const char* what) {
  const Window& window = TheWindow();
  const std::int64_t at = static_cast<const std::byte*>(p) - window.base;
  const auto address = static_cast<std::uint32_t>(at);
  if (at < window.begin || at + bytes > window.end || address % alignment != 0) [[unlikely]] {
    ReportAddress(at, bytes, alignment, what);
  }
  return address;
}

std::byte* SharedPointer(std::uint32_t address, std::uint32_t bytes, std::uint32_t alignment,
                         const char* what) {
  std::byte* p = TheWindow().base + address;
  SharedAddress(p, bytes, alignment, what);
  return p;
}

void Poison(std::uint32_t address, std::uint32_t bytes) {
  std::memset(TheWindow().base + address, kPoison, bytes);
}

}  // namespace quire::cuda_emulator
