#pragma once

// One allocation of device memory for many matrices. GPUs allocate memory in units of 2 MiB, so a
// matrix of 3 MiB in a separate allocation would occupy 4 MiB.

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device_buffer.h"

namespace quire::kernels {

// Place:      created by Weights for the matrices of a layer, filled by PackLinearWeights and
//             PackQuantizedRows.
// Invariants: buffers are consecutive, in the order of the calls of Take. Each starts at a multiple
//             of kAlignment, which every kernel and tensor map requires of a matrix.
// Threads:    one at a time.
// Lifetime:   movable; buffers outlive the WeightMemory.
class WeightMemory {
 public:
  static constexpr std::int64_t kAlignment = 256;

  // Returns the bytes that a buffer of `size_bytes` occupies.
  static constexpr std::int64_t PaddedBytes(std::int64_t size_bytes) {
    return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Errors are those of DeviceBuffer::Allocate.
  static absl::StatusOr<WeightMemory> Allocate(std::int64_t size_bytes);

  // Returns the next buffer. REQUIRES: PaddedBytes(size_bytes) bytes are left.
  DeviceBuffer Take(std::int64_t size_bytes);

  std::int64_t left_bytes() const { return block_.size_bytes() - used_; }
  // Returns the whole allocation.
  DeviceBuffer block() const { return block_.Part(0, block_.size_bytes()); }

 private:
  DeviceBuffer block_;
  std::int64_t used_ = 0;
};

}  // namespace quire::kernels
