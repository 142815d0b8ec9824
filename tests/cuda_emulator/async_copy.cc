#include "tests/cuda_emulator/async_copy.h"

#include <cstring>
#include <string>
#include <utility>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/barrier.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

void Land(const PendingCopy& copy) {
  std::byte* const to = SharedPointer(copy.to, copy.bytes, copy.bytes, "cp.async");
  if (copy.valid) {
    std::memcpy(to, copy.from, copy.bytes);
  } else {
    std::memset(to, 0, copy.bytes);
  }
}

// `clock` is the time of the thread `member` at which the bytes arrive.
void Finish(const PendingCopy& copy, std::uint32_t member, std::uint32_t clock) {
  Land(copy);
  EndCopy(copy.to, copy.bytes, member, clock, copy.code);
}

}  // namespace

void CheckGlobal(const void* p, std::uint64_t bytes, const char* what) {
  if (IsDeviceReadable(p, bytes)) return;
  Fatal(std::string(what) + ": " + std::to_string(bytes) + " bytes at " + DescribeAddress(p) +
        " are not in device or pinned memory");
}

void CheckAligned(const void* p, std::uint32_t alignment, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(p) % alignment == 0) return;
  Fatal(std::string(what) + ": address " + DescribeAddress(p) + " is not a multiple of " +
        std::to_string(alignment));
}

void IssueCopy(void* shared, const void* global, std::uint32_t bytes, bool valid) {
  const std::uint32_t to = SharedAddress(shared, bytes, bytes, "cp.async");
  CheckGlobal(global, bytes, "cp.async");
  CheckAligned(global, bytes, "cp.async");
  const void* const code = __builtin_return_address(0);
  if (valid && is_checking) CheckAccess(global, bytes, Access::kRead, code);
  BeginCopy(to, bytes, code);
  Poison(to, bytes);
  current_thread->copies.push_back(
      {.to = to, .from = global, .bytes = bytes, .valid = valid, .group = 0, .code = code});
}

void CommitCopies() {
  Thread& self = *current_thread;
  ++self.copy_groups;
  for (auto copy = self.copies.rbegin(); copy != self.copies.rend() && copy->group == 0; ++copy) {
    copy->group = self.copy_groups;
  }
}

void WaitCopies(std::uint32_t pending) {
  Thread& self = *current_thread;
  const std::uint32_t last = self.copy_groups > pending ? self.copy_groups - pending : 0;
  auto end = self.copies.begin();
  while (end != self.copies.end() && end->group != 0 && end->group <= last) {
    Finish(*end++, self.index, self.clock.now);
  }
  self.copies.erase(self.copies.begin(), end);
}

void ArriveAfterCopies(void* barrier) {
  const std::uint32_t at = BarrierAddress(barrier);
  Thread& self = *current_thread;
  const std::uint32_t now = self.clock.now;
  Meeting own;
  if (is_checking) own.Arrive(&self.clock);
  AddLateWork(
      [at, now, thread = self.index, seen = own.Finish(), copies = std::exchange(self.copies, {})] {
        for (const PendingCopy& copy : copies) Finish(copy, thread, now);
        ArriveBarrierFor(at, seen);
      });
}

}  // namespace quire::cuda_emulator
