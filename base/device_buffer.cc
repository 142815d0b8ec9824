#include "base/device_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// Maps `size` bytes, a multiple of the page size, at a multiple of the huge page size: takes up to
// one huge page too much and gives the ends back.
void* MapHugeAligned(std::size_t size) {
  const auto huge = static_cast<std::size_t>(DeviceBuffer::kHugePageBytes);
  void* raw =
      mmap(nullptr, size + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return raw;
  auto* const begin = static_cast<std::byte*>(raw);
  const std::size_t skip = (huge - reinterpret_cast<std::uintptr_t>(raw) % huge) % huge;
  if (skip > 0) munmap(begin, skip);
  if (huge > skip) munmap(begin + skip + size, huge - skip);
  // Advice only: a kernel without transparent huge pages says no, and that is fine.
  (void)madvise(begin + skip, size, MADV_HUGEPAGE);
  return begin + skip;
}

std::size_t MappedSize(std::int64_t size_bytes) {
  const auto page = static_cast<std::size_t>(DeviceBuffer::kAlignment);
  return (static_cast<std::size_t>(size_bytes) + page - 1) / page * page;
}

}  // namespace

absl::StatusOr<DeviceBuffer> DeviceBuffer::Allocate(MemoryKind kind, std::int64_t size_bytes) {
  if (kind != MemoryKind::kHost) {
    return absl::UnimplementedError(
        absl::StrCat(kind == MemoryKind::kPinned ? "page-locked" : "device",
                     " memory needs CUDA, which is not part of this version"));
  }
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("buffer of ", size_bytes, " bytes"));
  }
  if (size_bytes == 0) return DeviceBuffer();
  void* data = MAP_FAILED;
  if (size_bytes < std::numeric_limits<std::int64_t>::max() - 2 * kHugePageBytes) {
    const std::size_t size = MappedSize(size_bytes);
    data = size_bytes >= kHugePageBytes
               ? MapHugeAligned(size)
               : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", size_bytes, " bytes of host memory"));
  }
  return DeviceBuffer(kind, data, size_bytes);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : kind_(other.kind_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) munmap(data_, MappedSize(size_bytes_));
}

}  // namespace quire
