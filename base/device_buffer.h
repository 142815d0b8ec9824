#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace quire {

// Kind of memory: pageable host memory, page-locked host memory or GPU memory.
enum class MemoryKind : std::uint8_t { kHost, kPinned, kDevice };

// Owns a block of zeroed memory. Part() returns buffers that share ownership of the block.
//
// Place:      below KvPool, weights and workspaces.
// Invariants: kHost memory is aligned to kAlignment. kHost blocks of at least kHugePageBytes are
//             aligned to kHugePageBytes and request huge pages. Their pages use no memory until
//             they are first accessed. Pinned and device memory is aligned to 256 bytes.
// Threads:    the class does not synchronize access to the bytes. Device memory is allocated on the
//             GPU that is current for the calling thread (UseDevice).
// Lifetime:   moving keeps data() valid. The block is freed when the allocated buffer and all its
//             parts are destroyed. Freeing waits for GPU work that uses the memory.
class DeviceBuffer {
 public:
  static constexpr std::int64_t kAlignment = 4096;
  static constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

  // Returns INVALID_ARGUMENT for a negative size, RESOURCE_EXHAUSTED if the allocation fails, and
  // UNIMPLEMENTED for a kind that needs CUDA in a build without CUDA. Other errors are those of
  // CudaStatus. For 0 bytes returns an empty buffer.
  static absl::StatusOr<DeviceBuffer> Allocate(MemoryKind kind, std::int64_t size_bytes);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() = default;

  // Returns bytes [offset, offset + size_bytes) of this buffer. REQUIRES: the range lies inside it.
  DeviceBuffer Part(std::int64_t offset, std::int64_t size_bytes) const;

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
  std::shared_ptr<void> block_;  // frees the whole block; null for an empty buffer
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

}  // namespace quire
