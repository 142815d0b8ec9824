#pragma once

#include <cstdint>

namespace quire {

// Number of calls of operator new by the calling thread. Linking allocation_count.cc enables the
// counter.
std::uint64_t NumAllocations();
// Bytes requested by all these calls, including memory freed since.
std::uint64_t BytesAllocated();

}  // namespace quire
