#pragma once

#include <cstdint>

namespace quire {

// How often this process has called operator new; linking allocation_count.cc counts them.
std::uint64_t NumAllocations();

}  // namespace quire
