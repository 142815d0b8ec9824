#include "tests/cuda_emulator/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <new>

// Pushes the registers that a function must preserve, saves the stack pointer to *from, and resumes
// the fiber whose stack pointer was saved in `to`. Kernels do not change the control words of the
// floating-point units, which are slow to save and load.
extern "C" void QuireSwitchStacks(void** from, void* to);
asm(R"(
  .pushsection .text
  .globl QuireSwitchStacks
  .type QuireSwitchStacks, @function
QuireSwitchStacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size QuireSwitchStacks, .-QuireSwitchStacks
  .popsection
)");

namespace quire::cuda_emulator {

std::byte* fiber_stacks = nullptr;

namespace {

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

// The top of the stack of a fiber that has not run. Its entry sees the alignment of a called
// function, and no caller.
struct FirstFrame {
  void* registers[6];
  void (*entry)();
  void* no_caller;
};

}  // namespace

void PrepareFiber(Thread* thread, void (*entry)()) {
  if (fiber_stacks == nullptr) MapStacks();
  const std::size_t stack = std::size_t{thread->slot} * kMaxThreads + thread->index;
  std::byte* const top = fiber_stacks + (stack + 1) * kSlot - Stagger(thread->index);
  auto* const frame = new (top - sizeof(FirstFrame)) FirstFrame{};
  frame->entry = entry;
  thread->context = frame;
}

void SwitchFiber(Thread* self, Thread* next) {
  current_thread = next;
  QuireSwitchStacks(&self->context, next->context);
}

std::uint32_t StackOf(const void* address) {
  if (!IsFiberStack(address)) return kMaxFibers;
  const std::ptrdiff_t at = static_cast<const std::byte*>(address) - fiber_stacks;
  return static_cast<std::uint32_t>(static_cast<std::size_t>(at) / kSlot);
}

}  // namespace quire::cuda_emulator
