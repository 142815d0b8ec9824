#pragma once

// One allocation of device memory for many matrices. A GPU hands out memory in units of 2 MiB, so
// that a matrix of 3 MiB in an allocation of its own takes 4.

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"

namespace quire::kernels {

// Place:      made by Weights for the matrices of a layer, filled by PackLinearWeights and
//             PackQuantizedRows.
// Invariants: pieces lie one behind the other in the order in which they were taken, each from a
//             multiple of kAlignment on, which is what every kernel and tensor map asks of a
//             matrix.
// Threads:    one at a time.
// Lifetime:   movable; what was taken from it lives on without it.
class WeightMemory {
 public:
  static constexpr std::int64_t kAlignment = 256;

  // What a piece of `size_bytes` takes.
  static constexpr std::int64_t RoomFor(std::int64_t size_bytes) {
    return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Returns what DeviceBuffer::Allocate returns for device memory.
  static absl::StatusOr<WeightMemory> Allocate(std::int64_t size_bytes);

  // The next piece. REQUIRES: RoomFor(size_bytes) is left.
  DeviceBuffer Take(std::int64_t size_bytes);

  std::int64_t left_bytes() const { return block_.size_bytes() - used_; }
  // All of it.
  DeviceBuffer block() const { return block_.Part(0, block_.size_bytes()); }

 private:
  DeviceBuffer block_;
  std::int64_t used_ = 0;
};

}  // namespace quire::kernels
