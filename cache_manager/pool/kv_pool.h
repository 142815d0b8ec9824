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
  // Fills the guards with 0xff bytes, a NaN in every floating-point type, so that a read through a
  // guard shows in the results and a write is found by CheckIntegrity. Otherwise guards are zero.
  bool guard_canary = false;
  // A CUDA stream: the pages lie in that device's memory. Null: host memory.
  const Stream* stream = nullptr;
};

// Owns the memory of all pages of one layer group on one device:
//
//   | guard rows | page 0 | page 1 | ... | page N-1 | guard rows |
//                ^ blocks(), 4096-byte aligned
//
// blocks [N, KV, L, P, H, D] and, when the geometry is quantised, scales [N, KV, L, P, H, S] in a
// second allocation with guards of its own. Everything is zero at the start and becomes resident
// only when it is touched.
//
// Place:      below CacheManager's ids and the views of kernels; knows memory, never page states.
// Invariants: page 0 (the null page) is zero; the guards hold their pattern. CheckIntegrity().
// Threads:    immutable apart from the bytes, which belong to the writer of the current step.
// Lifetime:   must outlive every view and step that reads it; a move keeps the addresses.
class KvPool {
 public:
  // Returns INVALID_ARGUMENT for a geometry that KvGeometry::Validate refuses, RESOURCE_EXHAUSTED
  // with the byte counts when the system has not enough memory.
  static absl::StatusOr<KvPool> Create(const KvGeometry& geometry,
                                       const KvPoolOptions& options = {});

  // Bytes that Create takes, guards included. REQUIRES: a valid geometry.
  static std::int64_t BytesFor(const KvGeometry& geometry);

  const KvGeometry& geometry() const { return geometry_; }
  void* blocks() const { return blocks_.base(); }
  // Null when the geometry is not quantised.
  void* scales() const { return scales_.base(); }

  // The bytes of one page: all layers, K and V. Scales are empty when not quantised.
  // REQUIRES: page.value() < num_blocks, host memory.
  std::span<std::byte> page_blocks(BlockId page) const { return blocks_.page(page); }
  std::span<std::byte> page_scales(BlockId page) const { return scales_.page(page); }

  // Bytes mapped, guards included.
  std::int64_t size_bytes() const;
  MemoryKind memory_kind() const { return blocks_.buffer.kind(); }

  // Proves that the null page is zero and that the guards are untouched, in O(page + guards). In
  // device memory it waits for the stream and reads them back.
  absl::Status CheckIntegrity() const;

 private:
  // One allocation of equal pages between two guards.
  struct Region {
    DeviceBuffer buffer;
    std::int64_t guard_bytes = 0;  // before the first page; the same after the last one
    std::int64_t page_bytes = 0;
    std::int64_t num_pages = 0;

    std::int64_t total_bytes() const { return 2 * guard_bytes + num_pages * page_bytes; }
    std::byte* base() const;
    std::span<std::byte> page(BlockId id) const;
    std::span<std::byte> leading_guard() const;
    std::span<std::byte> trailing_guard() const;
    absl::Status CheckIntegrity(const char* name, std::byte pattern, const Stream* stream) const;
  };

  // Sizes without memory.
  static Region Measure(std::int64_t page_bytes, std::int64_t row_bytes, std::uint32_t num_pages);
  static Region MeasureBlocks(const KvGeometry& geometry);
  static Region MeasureScales(const KvGeometry& geometry);
  absl::Status Map(Region* region) const;
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
