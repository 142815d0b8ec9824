#include "tests/cuda_emulator/device_memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/cuda_emulator/fiber.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kAlignment = 256;
constexpr int kPoison = 0xff;
// Poisoned at each end of a block. What lies between costs no memory until it is written, and reads
// as zeros.
constexpr std::uint64_t kPoisonedBytes = std::uint64_t{512} << 20;

struct Allocation {
  MemoryKind kind;
  std::uint64_t bytes;
  std::byte* pages;          // the first usable page, a guard page lies before it
  std::uint64_t page_bytes;  // usable pages, a guard page lies behind them
};

// By address of the first byte. Never destroyed: buffers of static objects may outlive it.
std::map<std::uintptr_t, Allocation>& Allocations() {
  static auto& allocations = *new std::map<std::uintptr_t, Allocation>();
  return allocations;
}

std::uint64_t device_bytes = 0;

std::uint64_t RoundUp(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

// What BlockBefore found last.
const std::pair<const std::uintptr_t, Allocation>* last_block = nullptr;

// The block at or before p, with its first byte; null without one.
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
  if (InKernel()) {
    const std::uint32_t stack = StackOf(info->si_addr);
    Fatal(stack < kMaxThreads ? "thread " + std::to_string(stack) + " overflows its stack"
                              : "access to " + DescribeAddress(info->si_addr) +
                                    (IsSharedPointer(info->si_addr) ? ", in shared memory" : ""));
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

void* AllocateMemory(MemoryKind kind, std::uint64_t bytes) {
  const std::uint64_t page_bytes = RoundUp(RoundUp(bytes, kAlignment), kPage);
  void* const raw = mmap(nullptr, page_bytes + 2 * kPage, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* const pages = static_cast<std::byte*>(raw) + kPage;
  if (mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(raw, page_bytes + 2 * kPage);
    return nullptr;
  }
  const std::uint64_t poisoned = std::min(page_bytes, kPoisonedBytes);
  std::memset(pages, kPoison, poisoned);
  std::memset(pages + page_bytes - poisoned, kPoison, poisoned);
  std::byte* const first = pages + page_bytes - RoundUp(bytes, kAlignment);
  last_block = nullptr;
  Allocations()[reinterpret_cast<std::uintptr_t>(first)] = {
      .kind = kind, .bytes = bytes, .pages = pages, .page_bytes = page_bytes};
  if (kind == MemoryKind::kDevice) device_bytes += RoundUp(bytes, kAlignment);
  return first;
}

bool FreeMemory(MemoryKind kind, void* p) {
  const auto found = Allocations().find(reinterpret_cast<std::uintptr_t>(p));
  if (found == Allocations().end() || found->second.kind != kind) return false;
  const Allocation allocation = found->second;
  CheckGuards(found->first, allocation);
  Allocations().erase(found);
  last_block = nullptr;
  munmap(allocation.pages - kPage, allocation.page_bytes + 2 * kPage);
  if (kind == MemoryKind::kDevice) device_bytes -= RoundUp(allocation.bytes, kAlignment);
  return true;
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

void InstallFaultMessage() {
  thread_local std::byte stack[64 * 1024];  // the fiber's own may be what overflowed
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
