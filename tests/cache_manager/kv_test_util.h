#pragma once

// Pools, tables and step inputs for tests of the KV cache views.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_step_inputs.h"

namespace quire::cache::testing {

// `size` zeroed values with the alignment of a pool. Nothing beyond them is addressable.
template <typename T>
class AlignedArray {
 public:
  explicit AlignedArray(std::size_t size)
      : size_(size), data_(static_cast<T*>(::operator new(size * sizeof(T), kAlignment))) {
    std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T));
  }
  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }

 private:
  static constexpr std::align_val_t kAlignment{kPoolAlignment};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::size_t size_;
  std::unique_ptr<T, Free> data_;
};

// The step arrays of a batch, in the cache manager's layout.
struct StepArrays {
  AlignedArray<std::uint32_t> lookup_table;
  AlignedArray<std::uint32_t> cache_lengths;
  KvStepInputs inputs;

  // `stride` 0 means one block id per row, as in the continuous cache.
  StepArrays(std::uint32_t rows, std::uint32_t stride)
      : lookup_table(std::size_t{rows} * std::max(stride, 1u)), cache_lengths(rows) {
    inputs.lookup_table = lookup_table.data();
    inputs.cache_lengths = cache_lengths.data();
    inputs.lookup_stride = std::max(stride, 1u);
    inputs.max_rows = rows;
  }
  StepArrays(StepArrays&&) = default;

  std::uint32_t& page(std::uint32_t b, std::uint32_t column) const {
    return lookup_table[std::size_t{b} * inputs.lookup_stride + column];
  }
  // Sets the length of row b and the exact history maximum. There are at least as many keys as
  // history tokens.
  void SetLength(std::uint32_t b, std::uint32_t tokens) {
    cache_lengths[b] = tokens;
    inputs.max_history_length = *std::max_element(cache_lengths.begin(), cache_lengths.end());
    inputs.max_cache_length = std::max(inputs.max_cache_length, inputs.max_history_length);
  }
};

// Returns the columns of a lookup table for max_pages pages.
inline std::uint32_t LookupStride(std::uint32_t max_pages) {
  return (max_pages + 7) / 8 * 8 + 16;
}

// Returns a geometry with the given extents. page_size of a continuous cache is its
// max_block_tokens.
inline KvGeometry MakeGeometry(std::uint32_t num_blocks, std::uint32_t kv_dim,
                               std::uint32_t num_layers, std::uint32_t page_size,
                               std::uint32_t num_heads, std::uint32_t head_size,
                               DType dtype = DType::kF32) {
  KvGeometry geometry;
  geometry.num_blocks = num_blocks;
  geometry.kv_dim = kv_dim;
  geometry.num_layers = num_layers;
  geometry.page_size = page_size;
  geometry.num_heads = num_heads;
  geometry.head_size = head_size;
  geometry.dtype = dtype;
  return geometry;
}

inline KvGeometry WithScales(KvGeometry geometry, DType dtype, std::uint32_t granularity) {
  geometry.dtype = dtype;
  geometry.scale_dtype = DType::kF32;
  geometry.granularity = granularity;
  return geometry;
}

inline std::size_t PoolElements(const KvGeometry& geometry) {
  return static_cast<std::size_t>(geometry.num_blocks * geometry.block_stride());
}
inline std::size_t PoolScales(const KvGeometry& geometry) {
  return static_cast<std::size_t>(geometry.num_blocks * geometry.scale_block_stride());
}

}  // namespace quire::cache::testing
