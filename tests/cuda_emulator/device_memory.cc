#include "tests/cuda_emulator/device_memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {

std::byte* device_arena = nullptr;

namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kAlignment = 256;
constexpr int kPoison = 0xff;
// Bytes poisoned at each end of a block. Memory between the ends takes no physical memory until it
// is written, and reads as zeros.
constexpr std::uint64_t kPoisonedBytes = std::uint64_t{512} << 20;

struct Allocation {
  MemoryKind kind;
  std::uint64_t bytes;
  std::byte* pages;          // the first usable page; a guard page precedes it
  std::uint64_t page_bytes;  // usable pages; a guard page follows them
};

// Allocations by the address of their first byte. The map is never destroyed, since buffers of
// static objects may outlive it.
std::map<std::uintptr_t, Allocation>& Allocations() {
  static auto& allocations = *new std::map<std::uintptr_t, Allocation>();
  return allocations;
}

std::uint64_t device_bytes = 0;

// Number of DeviceMemoryAccess objects, plus one while the host may access device memory.
int open_count = 0;
bool host_may_touch = false;
// Changing the protection visits all pages, so it is not changed for every access.
bool is_open = false;
std::uint32_t closes = 0;
std::uint32_t close_every = 1;

void MapArena() {
  if (device_arena != nullptr) return;
  void* const p = mmap(nullptr, kDeviceArenaBytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("memory of the emulated device");
    std::abort();
  }
  device_arena = static_cast<std::byte*>(p);
}

std::uint64_t RoundUp(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

// Finds `bytes` free bytes (whole pages) in the arena. The search starts after the last allocation
// and wraps around, so that freed memory is reused as late as possible. Returns null if there is no
// room.
std::byte* FindRoom(std::uint64_t bytes) {
  static std::uint64_t next = 0;
  MapArena();
  for (int round = 0; round < 2; ++round, next = 0) {
    auto block = Allocations().upper_bound(reinterpret_cast<std::uintptr_t>(device_arena + next));
    while (next + bytes <= kDeviceArenaBytes) {
      if (block == Allocations().end() ||
          device_arena + next + bytes <= block->second.pages - kPage) {
        return device_arena + std::exchange(next, next + bytes);
      }
      next = static_cast<std::uint64_t>(block->second.pages - device_arena) +
             block->second.page_bytes + kPage;
      ++block;
    }
  }
  return nullptr;
}

void Protect(const Allocation& allocation, bool may_touch) {
  if (allocation.kind != MemoryKind::kDevice) return;
  const int protection = may_touch ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mprotect(allocation.pages, allocation.page_bytes, protection) != 0) {
    std::perror("protection of the emulated device's memory");
    std::abort();
  }
}

void Open() {
  if (open_count++ > 0 || std::exchange(is_open, true)) return;
  for (const auto& [first, allocation] : Allocations()) Protect(allocation, /*may_touch=*/true);
}
// Protects less often after a while. Most host code has run by then, and benchmarks continue.
void Close() {
  constexpr std::uint32_t kOften = 4096;
  if (--open_count > 0) return;
  const std::uint32_t every = close_every > 1 && closes > kOften ? 16 * close_every : close_every;
  if (++closes % every != 0) return;
  is_open = false;
  for (const auto& [first, allocation] : Allocations()) Protect(allocation, /*may_touch=*/false);
}

// The last result of BlockBefore.
const std::pair<const std::uintptr_t, Allocation>* last_block = nullptr;

// Returns the block at or before p with its first byte, or null.
const std::pair<const std::uintptr_t, Allocation>* BlockBefore(const void* p) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (last_block != nullptr && at >= last_block->first &&
      at < last_block->first + last_block->second.bytes) {
    return last_block;
  }
  auto& allocations = Allocations();
  auto next = allocations.upper_bound(at);
  if (next == allocations.begin()) return nullptr;
  last_block = &*--next;
  return last_block;
}

void CheckGuards(std::uintptr_t first, const Allocation& allocation) {
  const auto* const begin = reinterpret_cast<const std::byte*>(first);
  const auto check = [&](const std::byte* from, const std::byte* to) {
    for (const std::byte* p = from; p < to; ++p) {
      if (*p != std::byte{kPoison}) Fatal("a byte was written at " + DescribeAddress(p));
    }
  };
  check(allocation.pages, begin);
  check(begin + allocation.bytes, allocation.pages + allocation.page_bytes);
}

const char* Name(MemoryKind kind) {
  return kind == MemoryKind::kDevice   ? "device"
         : kind == MemoryKind::kPinned ? "pinned"
                                       : "pageable";
}

void OnFault(int signal_number, siginfo_t* info, void*) {
  if (InThread()) {
    const std::uint32_t stack = StackOf(info->si_addr);
    Fatal(stack < kMaxFibers
              ? "thread " + std::to_string(stack % kMaxThreads) + " overflows its stack"
              : "access to " + DescribeAddress(info->si_addr) +
                    (IsSharedPointer(info->si_addr) ? ", in shared memory" : ""));
  }
  if (IsInDeviceArena(info->si_addr)) {
    Fatal("the host touches " + DescribeAddress(info->si_addr));
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void* AllocateMemory(MemoryKind kind, std::uint64_t bytes) {
  const std::uint64_t page_bytes = RoundUp(RoundUp(bytes, kAlignment), kPage);
  std::byte* const room = FindRoom(page_bytes + 2 * kPage);
  if (room == nullptr) return nullptr;
  auto* const pages = room + kPage;
  if (mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  InstallFaultMessage();
  const std::uint64_t poisoned = std::min(page_bytes, kPoisonedBytes);
  std::memset(pages, kPoison, poisoned);
  std::memset(pages + page_bytes - poisoned, kPoison, poisoned);
  std::byte* const first = pages + page_bytes - RoundUp(bytes, kAlignment);
  last_block = nullptr;
  Allocations()[reinterpret_cast<std::uintptr_t>(first)] = {
      .kind = kind, .bytes = bytes, .pages = pages, .page_bytes = page_bytes};
  if (kind == MemoryKind::kDevice) device_bytes += RoundUp(bytes, kAlignment);
  if (!is_open) Protect(BlockBefore(first)->second, /*may_touch=*/false);
  return first;
}

bool FreeMemory(MemoryKind kind, void* p) {
  const auto found = Allocations().find(reinterpret_cast<std::uintptr_t>(p));
  if (found == Allocations().end() || found->second.kind != kind) return false;
  const Allocation allocation = found->second;
  Protect(allocation, /*may_touch=*/true);
  CheckGuards(found->first, allocation);
  Allocations().erase(found);
  last_block = nullptr;
  // Makes the pages inaccessible and releases their memory.
  if (mmap(allocation.pages, allocation.page_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    std::perror("memory of the emulated device");
    std::abort();
  }
  ForgetAccesses(allocation.pages, allocation.page_bytes);
  if (kind == MemoryKind::kDevice) device_bytes -= RoundUp(allocation.bytes, kAlignment);
  return true;
}

DeviceMemoryAccess::DeviceMemoryAccess() {
  Open();
}
DeviceMemoryAccess::~DeviceMemoryAccess() {
  Close();
}

void CloseDeviceMemoryEvery(std::uint32_t times) {
  close_every = times;
}

void LetHostTouchDeviceMemory(bool may) {
  if (may == std::exchange(host_may_touch, may)) return;
  may ? Open() : Close();
}

MemoryKind KindOf(const void* p) {
  const auto* const block = BlockBefore(p);
  if (block == nullptr) return MemoryKind::kPageable;
  const bool inside = reinterpret_cast<std::uintptr_t>(p) < block->first + block->second.bytes;
  return inside ? block->second.kind : MemoryKind::kPageable;
}

bool IsDeviceReadable(const void* p, std::uint64_t bytes) {
  return KindOf(p) != MemoryKind::kPageable && IsInsideBlock(p, bytes);
}

bool IsInsideBlock(const void* p, std::uint64_t bytes) {
  if (KindOf(p) == MemoryKind::kPageable) return true;
  const auto* const block = BlockBefore(p);
  return reinterpret_cast<std::uintptr_t>(p) + bytes <= block->first + block->second.bytes;
}

std::uint64_t DeviceBytesInUse() {
  return device_bytes;
}

std::string DescribeAddress(const void* p) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", p);
  std::string where = text;
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  const auto next = Allocations().upper_bound(at);
  const auto describe = [&](std::uint64_t distance, const char* side, const Allocation& block) {
    where += ", " + std::to_string(distance) + " bytes " + side + " a block of " +
             std::to_string(block.bytes) + " bytes of " + Name(block.kind) + " memory";
  };
  if (next != Allocations().begin()) {
    const auto& [first, block] = *std::prev(next);
    if (at < first + block.bytes) {
      describe(at - first, "into", block);
      return where;
    }
    if (at < first + block.bytes + 2 * kPage) describe(at - first - block.bytes, "behind", block);
  }
  if (next != Allocations().end() && next->first - at < 2 * kPage) {
    describe(next->first - at, "before", next->second);
  }
  return where;
}

std::string DescribeMemory(const void* p) {
  if (!IsSharedPointer(p)) return DescribeAddress(p);
  return "byte " + std::to_string(static_cast<const std::byte*>(p) - SharedStart()) +
         " of shared memory";
}

void InstallFaultMessage() {
  thread_local std::byte stack[64 * 1024];  // the fiber's own stack may have overflowed
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof(stack);
  sigaltstack(&alternate, nullptr);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  (void)installed;
}

}  // namespace quire::cuda_emulator
