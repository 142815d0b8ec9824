#include "tests/cache_manager/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {
thread_local std::uint64_t num_allocations = 0;
thread_local std::uint64_t bytes_allocated = 0;
}  // namespace

namespace quire {
std::uint64_t NumAllocations() {
  return num_allocations;
}
std::uint64_t BytesAllocated() {
  return bytes_allocated;
}
}  // namespace quire

void* operator new(std::size_t size) {
  ++num_allocations;
  bytes_allocated += size;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
// std::stable_sort allocates with this form.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return operator new(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
