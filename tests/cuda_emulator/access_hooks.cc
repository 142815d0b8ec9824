// What g++ calls before each access of code compiled with -fsanitize=thread, and where an access of
// code compiled with -fsanitize=alignment is not aligned. No other part of those sanitizers is
// linked: this is their runtime. Names and meaning: gcc's sanitizer.def and ubsan.cc.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/simt.h"

namespace emulator = quire::cuda_emulator;
using emulator::Access;

namespace {

inline void Observe(const void* p, std::uint32_t bytes, Access access, const void* code) {
  if (!emulator::some_thread_checks || !emulator::is_checking || !emulator::InThread()) return;
  emulator::CheckAccess(p, bytes, access, code);
}

// The part of the description of a place that messages need.
struct Place {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
};
struct TypeMismatch {
  Place place;  // that of the message is found as everywhere
  const void* type;
  unsigned char log_alignment;
  unsigned char kind;
};

}  // namespace

#define QUIRE_HOOK(NAME, BYTES, ACCESS)                     \
  extern "C" void NAME(void* p) {                           \
    Observe(p, BYTES, ACCESS, __builtin_return_address(0)); \
  }
#define QUIRE_HOOKS(BYTES)                                         \
  QUIRE_HOOK(__tsan_read##BYTES, BYTES, Access::kRead)             \
  QUIRE_HOOK(__tsan_write##BYTES, BYTES, Access::kWrite)           \
  QUIRE_HOOK(__tsan_unaligned_read##BYTES, BYTES, Access::kRead)   \
  QUIRE_HOOK(__tsan_unaligned_write##BYTES, BYTES, Access::kWrite) \
  QUIRE_HOOK(__tsan_volatile_read##BYTES, BYTES, Access::kRead)    \
  QUIRE_HOOK(__tsan_volatile_write##BYTES, BYTES, Access::kWrite)
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
  Observe(p, static_cast<std::uint32_t>(bytes), Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t bytes) {
  Observe(p, static_cast<std::uint32_t>(bytes), Access::kWrite, __builtin_return_address(0));
}

// Host code in the same files: reference counts. Atomics of kernels are those of thread.cuh.
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

void __ubsan_handle_type_mismatch_v1(const TypeMismatch* what, std::uintptr_t p) {
  if (!emulator::InThread()) return;
  emulator::Fatal("an access needs an address that is a multiple of " +
                  std::to_string(1u << what->log_alignment) + ", this one is " +
                  std::to_string(p % (1u << what->log_alignment)) + " bytes beyond one");
}

}  // extern "C"
