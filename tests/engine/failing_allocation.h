#pragma once

#include <cstddef>

namespace quire::engine {

// While one lives, operator new throws std::bad_alloc in every thread for `bytes` and more; linking
// failing_allocation.cc makes it so. One at a time.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::size_t bytes);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
};

}  // namespace quire::engine
