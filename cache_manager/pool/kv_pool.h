#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/strong_id.h"
#include "cache_manager/views/kv_params.h"

namespace quire::cache {

struct KvPoolOptions {
  // Fills the guard rows around the pages (see KvPool) with 0xff bytes, which are NaN in every
  // floating-point type. A kernel that reads a guard row then computes NaN, and CheckIntegrity
  // finds writes to guard rows. If false, the guard rows are zero.
  bool guard_canary = false;
  // The pages are allocated on the device of this CUDA stream, or in host memory if it is null.
  const Stream* stream = nullptr;
};

// Owns the memory of all pages on one device. The layer groups of a model share these pages:
//
//   | guard rows | page 0 | page 1 | ... | page N-1 | guard rows |
//                ^ blocks(), 4096-byte aligned
//
// The blocks are a tensor [N, KV, L, P, H, D] (see KvGeometry). If the geometry is quantized, the
// scales [N, KV, L, P, H, S] are a second allocation with its own guards. All bytes of pages are
// zero at the start. Host memory becomes resident when it is first touched.
//
// Place:      below CacheManager and the views of kernels. Knows memory, not page states.
// Invariants: page 0 (the null page) is zero; the guards contain their pattern. See
//             CheckIntegrity().
// Threads:    immutable except for the bytes, which the current step writes.
// Lifetime:   must outlive every view and step that reads it. Moving a KvPool does not change its
//             addresses.
class KvPool {
 public:
  // Returns INVALID_ARGUMENT if KvGeometry::Validate rejects the geometry, and RESOURCE_EXHAUSTED
  // with the byte counts if the allocation fails.
  static absl::StatusOr<KvPool> Create(const KvGeometry& geometry,
                                       const KvPoolOptions& options = {});

  // Returns the number of bytes that Create allocates, guards included. REQUIRES: the geometry is
  // valid.
  static std::int64_t BytesFor(const KvGeometry& geometry);

  const KvGeometry& geometry() const { return geometry_; }
  void* blocks() const { return blocks_.base(); }
  // Null if the geometry is not quantized.
  void* scales() const { return scales_.base(); }

  // Return the bytes of one page: K and V of all layers of one layer group. page_scales is empty if
  // the geometry is not quantized. REQUIRES: page.value() < num_blocks; host memory.
  std::span<std::byte> page_blocks(BlockId page) const { return blocks_.page(page); }
  std::span<std::byte> page_scales(BlockId page) const { return scales_.page(page); }

  // Number of bytes allocated, guards included.
  std::int64_t size_bytes() const;
  MemoryKind memory_kind() const { return blocks_.buffer.kind(); }

  // Checks that the null page is zero and that the guards are untouched. O(page + guards). Device
  // memory is first copied to the host, after the work that is queued on the stream.
  absl::Status CheckIntegrity() const;

 private:
  // One allocation: pages of equal size between two guards.
  struct Region {
    DeviceBuffer buffer;
    std::int64_t guard_bytes = 0;  // size of each guard
    std::int64_t page_bytes = 0;
    std::int64_t num_pages = 0;

    std::int64_t total_bytes() const { return 2 * guard_bytes + num_pages * page_bytes; }
    std::byte* base() const;
    std::span<std::byte> page(BlockId id) const;
    std::span<std::byte> leading_guard() const;
    std::span<std::byte> trailing_guard() const;
    absl::Status CheckIntegrity(const char* name, std::byte pattern, const Stream* stream) const;
  };

  // Return regions that have sizes but no memory.
  static Region LayOut(std::int64_t page_bytes, std::int64_t row_bytes, std::uint32_t num_pages);
  static Region LayOutBlocks(const KvGeometry& geometry);
  static Region LayOutScales(const KvGeometry& geometry);
  absl::Status AllocateRegion(Region* region) const;
  absl::Status Fill(std::span<std::byte> guard) const;

  KvPool(const KvGeometry& geometry, const KvPoolOptions& options)
      : geometry_(geometry), options_(options) {}

  std::byte guard_pattern() const { return std::byte(options_.guard_canary ? 0xff : 0x00); }

  KvGeometry geometry_;
  KvPoolOptions options_;
  Region blocks_;
  Region scales_;
};

}  // namespace quire::cache
