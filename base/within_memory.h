#pragma once

// The boundary at which a request that is too large for the memory that is left ends, and the
// process does not: whatever a client made large is allocated inside WithinMemory.
//
//   absl::Status status = WithinMemory([&] { return Parse(bytes, &message); });
//
// Place:   around the work for one request, where its handler has just been entered.
// Threads: any.

#include <new>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error_reason.h"

namespace quire {

// RESOURCE_EXHAUSTED / NO_MEMORY, to be tried again soon. All but the first need no memory.
inline absl::Status NoMemoryError() {
  static const auto* const error = new absl::Status(
      WithReason(absl::ResourceExhaustedError("there is no memory for this request"),
                 Reason::kNoMemory, {}, absl::Seconds(1)));
  return *error;
}

// What `work` returns, a Status or StatusOr, or NoMemoryError() if it throws std::bad_alloc.
template <typename Work>
auto WithinMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return NoMemoryError();
  }
}

}  // namespace quire
