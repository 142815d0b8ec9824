#include "tests/cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>

namespace quire::cuda_emulator {
namespace {

namespace context = boost::context::detail;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kStack = 256 * 1024;
constexpr std::size_t kSlot = kStack + kPage;  // an inaccessible page precedes each stack

std::byte* Stacks() {
  static std::byte* const stacks = [] {
    void* p = mmap(nullptr, kSlot * kMaxFibers, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED) {
      std::perror("stacks of emulated threads");
      std::abort();
    }
    auto* const base = static_cast<std::byte*>(p);
    for (std::size_t i = 0; i < kMaxFibers; ++i) mprotect(base + i * kSlot, kPage, PROT_NONE);
    return base;
  }();
  return stacks;
}

// Without the offset, frames of all threads would be at the same page offset and compete for the
// same cache lines.
std::size_t Stagger(std::uint32_t index) {
  return (index * 7 % 32) * 320;
}

void (*fiber_entry)() = nullptr;

void Arrived(const context::transfer_t& from) {
  auto* const left = static_cast<Thread*>(from.data);
  if (left != nullptr) left->context = from.fctx;
}

void FiberMain(context::transfer_t from) {
  Arrived(from);
  fiber_entry();
  std::abort();
}

}  // namespace

void PrepareFiber(Thread* thread, void (*entry)()) {
  fiber_entry = entry;
  const std::size_t stack = std::size_t{thread->slot} * kMaxThreads + thread->index;
  std::byte* const top = Stacks() + (stack + 1) * kSlot - Stagger(thread->index);
  thread->context = context::make_fcontext(top, kStack - Stagger(thread->index), FiberMain);
}

void SwitchFiber(Thread* self, Thread* next, bool ends) {
  current_thread = next;
  const context::transfer_t from =
      context::jump_fcontext(next->context, ends ? nullptr : static_cast<void*>(self));
  Arrived(from);
}

std::uint32_t StackOf(const void* address) {
  const std::ptrdiff_t at = static_cast<const std::byte*>(address) - Stacks();
  if (at < 0 || at >= static_cast<std::ptrdiff_t>(kSlot * kMaxFibers)) return kMaxFibers;
  return static_cast<std::uint32_t>(static_cast<std::size_t>(at) / kSlot);
}

}  // namespace quire::cuda_emulator
