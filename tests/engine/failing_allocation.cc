#include "tests/engine/failing_allocation.h"

#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>

namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
std::atomic<std::size_t> refused_bytes{kNone};  // in every thread
thread_local std::size_t refused_bytes_here = kNone;
thread_local int left_here = 0;
std::atomic<std::size_t> refused_bytes_where_marked{kNone};
std::atomic<int> left_where_marked{0};
thread_local bool is_marked = false;
thread_local std::int64_t allocations_here = 0;

bool IsRefused(std::size_t size) {
  if (size >= refused_bytes) return true;
  if (is_marked && size >= refused_bytes_where_marked) return left_where_marked.fetch_sub(1) <= 0;
  return size >= refused_bytes_here && left_here-- <= 0;
}

}  // namespace

void* operator new(std::size_t size) {
  ++allocations_here;
  void* const memory = IsRefused(size) ? nullptr : std::malloc(size == 0 ? 1 : size);
  // The library throws std::bad_alloc for what no memory can hold, without asking for it.
  if (memory == nullptr) (void)std::allocator<char>().allocate(kNone);
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace quire::engine {

FailingAllocation::FailingAllocation(std::size_t bytes) {
  refused_bytes = bytes;
}

FailingAllocation::FailingAllocation(std::size_t bytes, int after, In threads) {
  if (threads == In::kThisThread) {
    left_here = after;
    refused_bytes_here = bytes;
    return;
  }
  left_where_marked = after;
  refused_bytes_where_marked = bytes;
}

FailingAllocation::~FailingAllocation() {
  refused_bytes = kNone;
  refused_bytes_here = kNone;
  refused_bytes_where_marked = kNone;
}

void FailingAllocation::MarkThisThread() {
  is_marked = true;
}

std::int64_t AllocationsOfThisThread() {
  return allocations_here;
}

}  // namespace quire::engine
