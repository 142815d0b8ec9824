#include "tests/cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>

namespace quire::cuda_emulator {

std::byte* fiber_stacks = nullptr;

namespace {

namespace context = boost::context::detail;

constexpr std::size_t kSlot = kFiberStackSlot;

void MapStacks() {
  void* p = mmap(nullptr, kSlot * kMaxFibers, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("stacks of emulated threads");
    std::abort();
  }
  fiber_stacks = static_cast<std::byte*>(p);
  for (std::size_t i = 0; i < kMaxFibers; ++i) {
    mprotect(fiber_stacks + i * kSlot, kFiberStackPage, PROT_NONE);
  }
}

// Without the offset, frames of all threads would be at the same page offset and compete for the
// same cache lines.
std::size_t Stagger(std::uint32_t index) {
  return (index * 7 % 32) * 320;
}

void (*fiber_entry)() = nullptr;

// Stores the context of the thread that has just switched to this one.
void SaveContext(const context::transfer_t& from) {
  static_cast<Thread*>(from.data)->context = from.fctx;
}

void FiberMain(context::transfer_t from) {
  SaveContext(from);
  fiber_entry();
  std::abort();
}

}  // namespace

void PrepareFiber(Thread* thread, void (*entry)()) {
  fiber_entry = entry;
  if (fiber_stacks == nullptr) MapStacks();
  const std::size_t stack = std::size_t{thread->slot} * kMaxThreads + thread->index;
  std::byte* const top = fiber_stacks + (stack + 1) * kSlot - Stagger(thread->index);
  thread->context =
      context::make_fcontext(top, kSlot - kFiberStackPage - Stagger(thread->index), FiberMain);
}

void SwitchFiber(Thread* self, Thread* next) {
  current_thread = next;
  SaveContext(context::jump_fcontext(next->context, self));
}

std::uint32_t StackOf(const void* address) {
  if (!IsFiberStack(address)) return kMaxFibers;
  const std::ptrdiff_t at = static_cast<const std::byte*>(address) - fiber_stacks;
  return static_cast<std::uint32_t>(static_cast<std::size_t>(at) / kSlot);
}

}  // namespace quire::cuda_emulator
