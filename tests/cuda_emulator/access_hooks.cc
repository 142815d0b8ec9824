// Functions that g++ calls before each access of code compiled with -fsanitize=thread. They replace
// the runtime of that sanitizer. gcc's sanitizer.def defines their names and meaning.

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/simt.h"

namespace emulator = quire::cuda_emulator;
using emulator::Access;

namespace {

// This is a function of its own because g++ would save its registers in every hook, which is slow
// in launches without checks.
[[gnu::noinline]] void ObserveChecked(const void* p, std::uint32_t bytes, Access access,
                                      std::uint32_t alignment, const void* code) {
  if (!emulator::is_checking || !emulator::InThread()) return;
  if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0) emulator::CheckAlignment(p, alignment);
  emulator::CheckAccess(p, bytes, access, code);
}

// `alignment` is that of the type, if g++ passes it.
[[gnu::always_inline]] inline void Observe(const void* p, std::uint32_t bytes, Access access,
                                           std::uint32_t alignment, const void* code) {
  if (!emulator::some_thread_checks.load(std::memory_order_relaxed)) [[likely]]
    return;
  ObserveChecked(p, bytes, access, alignment, code);
}

}  // namespace

#define QUIRE_HOOK(NAME, BYTES, ACCESS, ALIGNMENT)                     \
  extern "C" void NAME(void* p) {                                      \
    Observe(p, BYTES, ACCESS, ALIGNMENT, __builtin_return_address(0)); \
  }
#define QUIRE_HOOKS(BYTES)                                             \
  QUIRE_HOOK(__tsan_read##BYTES, BYTES, Access::kRead, BYTES)          \
  QUIRE_HOOK(__tsan_write##BYTES, BYTES, Access::kWrite, BYTES)        \
  QUIRE_HOOK(__tsan_unaligned_read##BYTES, BYTES, Access::kRead, 1)    \
  QUIRE_HOOK(__tsan_unaligned_write##BYTES, BYTES, Access::kWrite, 1)  \
  QUIRE_HOOK(__tsan_volatile_read##BYTES, BYTES, Access::kRead, BYTES) \
  QUIRE_HOOK(__tsan_volatile_write##BYTES, BYTES, Access::kWrite, BYTES)
QUIRE_HOOKS(1)
QUIRE_HOOKS(2)
QUIRE_HOOKS(4)
QUIRE_HOOKS(8)
QUIRE_HOOKS(16)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_read_range(void* p, std::size_t bytes) {
  Observe(p, static_cast<std::uint32_t>(bytes), Access::kRead, 1, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t bytes) {
  Observe(p, static_cast<std::uint32_t>(bytes), Access::kWrite, 1, __builtin_return_address(0));
}

// Host code in the same files uses these for reference counts. Kernels use the atomics of
// thread.cuh.
std::uint32_t __tsan_atomic32_load(const volatile std::uint32_t* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_add(volatile std::uint32_t* p, std::uint32_t x, int) {
  return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST);
}
std::uint32_t __tsan_atomic32_fetch_sub(volatile std::uint32_t* p, std::uint32_t x, int) {
  return __atomic_fetch_sub(p, x, __ATOMIC_SEQ_CST);
}
std::uint8_t __tsan_atomic8_load(const volatile std::uint8_t* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
std::uint64_t __tsan_atomic64_load(const volatile std::uint64_t* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

}  // extern "C"
