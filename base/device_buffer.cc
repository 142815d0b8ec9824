#include "base/device_buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status.h"
#ifdef QUIRE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

namespace quire {
namespace {

// Maps `size` bytes, a multiple of the page size, aligned to the huge page size. Maps one huge page
// more and unmaps the excess at both ends.
void* MapHugeAligned(std::size_t size) {
  const auto huge = static_cast<std::size_t>(DeviceBuffer::kHugePageBytes);
  void* raw =
      mmap(nullptr, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return raw;
  auto* const begin = static_cast<std::byte*>(raw);
  const std::size_t skip = (huge - reinterpret_cast<std::uintptr_t>(raw) % huge) % huge;
  if (skip > 0) munmap(begin, skip);
  if (huge > skip) munmap(begin + skip + size, huge - skip);
  // A kernel without transparent huge pages rejects this advice, which is harmless.
  (void)madvise(begin + skip, size, MADV_HUGEPAGE);
  return begin + skip;
}

std::size_t MappedSize(std::int64_t size_bytes) {
  const auto page = static_cast<std::size_t>(DeviceBuffer::kAlignment);
  return (static_cast<std::size_t>(size_bytes) + page - 1) / page * page;
}

absl::StatusOr<void*> AllocateHost(std::int64_t size_bytes) {
  void* data = MAP_FAILED;
  if (size_bytes < std::numeric_limits<std::int64_t>::max() - 2 * DeviceBuffer::kHugePageBytes) {
    const std::size_t size = MappedSize(size_bytes);
    data = size_bytes >= DeviceBuffer::kHugePageBytes
               ? MapHugeAligned(size)
               : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", size_bytes, " bytes of host memory"));
  }
  return data;
}

absl::string_view CudaMemoryName(MemoryKind kind) {
  return kind == MemoryKind::kPinned ? "page-locked" : "device";
}

#ifdef QUIRE_HAS_CUDA

// REQUIRES: `kind` is not kHost.
absl::StatusOr<void*> AllocateWithCuda(MemoryKind kind, std::int64_t size_bytes) {
  void* data = nullptr;
  const auto size = static_cast<std::size_t>(size_bytes);
  const std::string what =
      absl::StrCat("cannot allocate ", size_bytes, " bytes of ", CudaMemoryName(kind), " memory");
  if (kind == MemoryKind::kPinned) {
    QUIRE_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&data, size, cudaHostAllocPortable), what));
    std::memset(data, 0, size);
    return data;
  }
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&data, size), what));
  absl::Status zeroed = CudaStatus(cudaMemset(data, 0, size), what);
  // Other streams do not wait for the fill, so this thread waits.
  if (zeroed.ok()) zeroed = CudaStatus(cudaStreamSynchronize(nullptr), what);
  if (!zeroed.ok()) {
    (void)cudaFree(data);
    (void)cudaGetLastError();
    return zeroed;
  }
  return data;
}

void Free(MemoryKind kind, void* data, std::int64_t size_bytes) {
  if (kind == MemoryKind::kHost) {
    munmap(data, MappedSize(size_bytes));
    return;
  }
  (void)(kind == MemoryKind::kPinned ? cudaFreeHost(data) : cudaFree(data));
  (void)cudaGetLastError();
}

#else

absl::StatusOr<void*> AllocateWithCuda(MemoryKind kind, std::int64_t) {
  return absl::UnimplementedError(
      absl::StrCat(CudaMemoryName(kind),
                   " memory needs a build with CUDA; this build has none (QUIRE_CUDA=OFF)"));
}

void Free(MemoryKind, void* data, std::int64_t size_bytes) {
  munmap(data, MappedSize(size_bytes));
}

#endif

}  // namespace

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(MemoryKind kind, std::int64_t size_bytes) {
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the size of a buffer is ", size_bytes, " bytes, it must not be negative"));
  }
  if (size_bytes == 0) return DeviceBuffer(kind, nullptr, 0);
  QUIRE_ASSIGN_OR_RETURN(void* const data, kind == MemoryKind::kHost
                                               ? AllocateHost(size_bytes)
                                               : AllocateWithCuda(kind, size_bytes));
  DeviceBuffer buffer(kind, data, size_bytes);
  buffer.block_ = std::shared_ptr<void>(
      data, [kind, size_bytes](void* block) { Free(kind, block, size_bytes); });
  return buffer;
}

DeviceBuffer DeviceBuffer::Part(std::int64_t offset, std::int64_t size_bytes) const {
  QUIRE_CHECK(offset >= 0 && size_bytes >= 0 && offset <= size_bytes_ - size_bytes);
  DeviceBuffer part(kind_, static_cast<std::byte*>(data_) + offset, size_bytes);
  part.block_ = block_;
  return part;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : kind_(other.kind_),
      block_(std::move(other.block_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(block_, other.block_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace quire
