#pragma once

#include <cstdint>

namespace quire {

// How often this process has called operator new; linking allocation_count.cc counts them.
std::uint64_t NumAllocations();
// The bytes that all these calls asked for, those given back since included.
std::uint64_t BytesAllocated();

}  // namespace quire
