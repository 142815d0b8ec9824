#pragma once

// QUIRE_CHECK ends the process if an invariant of shared state is violated. In device code it traps
// the kernel. QUIRE_DCHECK does the same in debug and sanitizer builds and compiles to nothing in
// other builds. Invalid input is reported as absl::Status instead.

#include <cstdio>
#include <cstdlib>

#include "base/host_device.h"

namespace quire::internal {

[[noreturn]] inline QUIRE_HOST_DEVICE void CheckFailed(const char* condition, const char* file,
                                                       int line) {
#ifdef __CUDA_ARCH__
  (void)condition;
  (void)file;
  (void)line;
  __trap();
#else
  std::fprintf(stderr, "check failed: %s (%s:%d)\n", condition, file, line);
  std::abort();
#endif
}

}  // namespace quire::internal

#define QUIRE_CHECK(condition)            \
  (static_cast<bool>(condition) ? (void)0 \
                                : ::quire::internal::CheckFailed(#condition, __FILE__, __LINE__))

#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_DCHECK(condition) QUIRE_CHECK(condition)
#else
#define QUIRE_DCHECK(condition) ((void)0)
#endif
