#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::engine {

// While one lives, operator new throws std::bad_alloc for `bytes` and more; linking
// failing_allocation.cc makes it so. In every thread, or, with `after`, in the thread that made it
// or in those that are marked, where the first `after` such allocations succeed. One at a time.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::size_t bytes);
  enum class In { kThisThread, kMarkedThreads };
  FailingAllocation(std::size_t bytes, int after, In threads = In::kThisThread);
  ~FailingAllocation();
  static void MarkThisThread();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
};

// How many allocations the calling thread has made, in a program that links
// failing_allocation.cc.
std::int64_t AllocationsOfThisThread();

}  // namespace quire::engine
