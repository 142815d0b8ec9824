#pragma once

// Counts every operator new of a program that links allocation_counter.cc. Tests use it to prove
// that code allocates nothing or uses little memory at a time.

#include <cstdint>

namespace quire::models {

std::int64_t AllocationCount();

// Measures the peak of heap bytes above the level at construction. Memory of DeviceBuffer is not on
// the heap. Only one instance may exist at a time.
class HeapPeak {
 public:
  HeapPeak();
  std::int64_t bytes() const;

 private:
  std::int64_t before_;
};

}  // namespace quire::models
