#include "tests/models/allocation_counter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::int64_t> count{0};
std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> peak{0};

void Forget(void* memory) {
  live.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}
}  // namespace

void* operator new(std::size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(memory));
  const std::int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return memory;
}
void operator delete(void* memory) noexcept {
  Forget(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  Forget(memory);
}

namespace quire::models {

std::int64_t AllocationCount() {
  return count.load();
}

HeapPeak::HeapPeak() : before_(live.load()) {
  peak.store(before_);
}

std::int64_t HeapPeak::bytes() const {
  return peak.load() - before_;
}

}  // namespace quire::models
