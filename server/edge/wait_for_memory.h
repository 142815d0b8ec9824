#pragma once

// For steps that may not be left out, and that need a few bytes only: what waits for them would
// wait for ever.
//
// Place:   below the listeners.
// Threads: any. The caller's thread waits.

#include <new>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace quire::server {

// The result of `work`, which is tried again until there is memory for it. REQUIRES: a `work` that
// throws has changed nothing.
template <typename Work>
auto WaitForMemory(const Work& work) {
  for (;;) {
    try {
      return work();
    } catch (const std::bad_alloc&) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

}  // namespace quire::server
