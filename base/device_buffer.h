#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace quire {

// Where bytes live: pageable host memory, page-locked host memory, memory of a GPU.
enum class MemoryKind : std::uint8_t { kHost, kPinned, kDevice };

// Owns a block of zeroed memory, or shares one with other parts of it.
//
// Place:      under KvPool, weights and workspaces.
// Invariants: host memory is aligned to kAlignment, from kHugePageBytes on to kHugePageBytes, where
//             the system is also asked for huge pages; its pages cost nothing until they are
//             touched. Memory of the other kinds is aligned to 256 bytes.
// Threads:    none of its own; the bytes are the owner's business. Device memory belongs to the GPU
//             that is current for the thread that allocates it (UseDevice).
// Lifetime:   moving keeps data() valid. A block lives until the buffer that was allocated and all
//             parts of it are destroyed. Destroying memory that a GPU has work on waits for that
//             work.
class DeviceBuffer {
 public:
  static constexpr std::int64_t kAlignment = 4096;
  static constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

  // Returns INVALID_ARGUMENT for a negative size, RESOURCE_EXHAUSTED when the system or the GPU has
  // no such block, UNIMPLEMENTED for a kind that needs CUDA in a build without, and what CudaStatus
  // says otherwise. Zero bytes give an empty buffer.
  static absl::StatusOr<DeviceBuffer> Allocate(MemoryKind kind, std::int64_t size_bytes);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer() = default;

  // Bytes [offset, offset + size_bytes) of this buffer. REQUIRES: they lie inside.
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
  std::shared_ptr<void> block_;  // frees the whole block; null without one
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

}  // namespace quire
