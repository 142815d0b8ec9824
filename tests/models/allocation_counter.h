#pragma once

// Counts every operator new of a program that links allocation_counter.cc, to prove that something
// makes none, or holds little at a time.

#include <cstdint>

namespace quire::models {

std::int64_t AllocationCount();

// The most bytes that the heap held since it was made, beyond those it held then. Memory of
// DeviceBuffer is not from the heap. One at a time.
class HeapPeak {
 public:
  HeapPeak();
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};

}  // namespace quire::models
