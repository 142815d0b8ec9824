#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace quire {

// Where bytes live: pageable host memory, page-locked host memory, memory of a GPU.
enum class MemoryKind : std::uint8_t { kHost, kPinned, kDevice };

// Owns a block of zeroed memory. This version allocates host memory; the other kinds belong to
// CUDA.
//
// Place:      under KvPool, weights and workspaces.
// Invariants: data() is aligned to kAlignment, from kHugePageBytes on to kHugePageBytes, where the
//             system is also asked for huge pages. Pages cost nothing until they are touched.
// Threads:    none of its own; the bytes are the owner's business.
// Lifetime:   moving keeps data() valid.
class DeviceBuffer {
 public:
  static constexpr std::int64_t kAlignment = 4096;
  static constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

  // Returns INVALID_ARGUMENT for a negative size, RESOURCE_EXHAUSTED when the system refuses, and
  // UNIMPLEMENTED for a kind that needs CUDA. Zero bytes give an empty buffer.
  static absl::StatusOr<DeviceBuffer> Allocate(MemoryKind kind, std::int64_t size_bytes);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }
  MemoryKind kind() const { return kind_; }
  // REQUIRES: kind() is not kDevice.
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data_), static_cast<std::size_t>(size_bytes_)};
  }

 private:
  DeviceBuffer(MemoryKind kind, void* data, std::int64_t size_bytes)
      : kind_(kind), data_(data), size_bytes_(size_bytes) {}

  MemoryKind kind_ = MemoryKind::kHost;
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

}  // namespace quire
