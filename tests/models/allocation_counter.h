#pragma once

// Counts every operator new of a program that links allocation_counter.cc, to prove that something
// makes none.

#include <cstdint>

namespace quire::models {

std::int64_t AllocationCount();

}  // namespace quire::models
