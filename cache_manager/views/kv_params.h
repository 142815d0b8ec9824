#pragma once

// The shape of a KV cache: the parameters that a kernel knows at compile time, and the geometry of
// a pool at run time.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/host_device.h"
#include "base/status.h"

namespace quire::cache {

// Stands for an extent that is a field of the view instead of a constant.
inline constexpr std::uint32_t kDynamicExtent = 0xffffffffu;

// The max_tile_size of a cache whose sequences are contiguous.
inline constexpr std::uint32_t kNoTileLimit = 0xffffffffu;

// Number of rows that are mapped before the first page and after the last page, because a TMA box
// may reach them.
inline constexpr std::uint32_t kGuardRows = 256;

// The id of the null page, which reads as zero and is never written.
inline constexpr std::uint32_t kNullPage = 0;

// Maximum number of entries of a tile's row table (kv_row_indices.h), and the number of padding
// columns of a lookup table.
inline constexpr std::uint32_t kMaxTilePages = 16;

// An extent E that is a constant, or a field if E is kDynamicExtent. Views have it as a plain
// member, because nvcc 13.0 lays out [[no_unique_address]] members of kernel arguments differently
// than the host compiler.
template <std::uint32_t E>
struct KvExtent {
  QUIRE_HOST_DEVICE constexpr std::uint32_t get() const { return E; }
};
template <>
struct KvExtent<kDynamicExtent> {
  std::uint32_t value = 0;
  QUIRE_HOST_DEVICE constexpr std::uint32_t get() const { return value; }
};

// The compile-time extents of one device's share of the cache. They are members of a type, because
// nvcc 13.0 generates invalid host stubs for class-type template arguments. An MLA cache has one
// head, whose row is both K and V. A rope-aware row is content of one byte per element, followed by
// RopeSize BF16 values.
template <std::uint32_t NumHeads, std::uint32_t HeadSize, bool IsMla = false,
          std::uint32_t RopeSize = 0>
struct KVCacheStaticParams {
  static_assert(NumHeads >= 1 && HeadSize >= 1);
  static_assert(!IsMla || NumHeads == 1, "an MLA cache has one head");
  static_assert(RopeSize == 0 || IsMla, "only MLA rows hold rope values");
  static_assert(RopeSize == 0 || (HeadSize != kDynamicExtent && HeadSize > 2 * RopeSize),
                "a rope-aware row holds content before its rope values");

  static constexpr std::uint32_t kNumHeads = NumHeads;  // or kDynamicExtent
  static constexpr std::uint32_t kHeadSize = HeadSize;  // or kDynamicExtent
  static constexpr bool kIsMla = IsMla;
  static constexpr std::uint32_t kKvDim = IsMla ? 1 : 2;
  static constexpr std::uint32_t kRopeSize = RopeSize;
  // Number of columns before the rope values. A BF16 value takes two one-byte columns.
  static constexpr std::uint32_t kContentSize =
      HeadSize == kDynamicExtent ? kDynamicExtent : HeadSize - 2 * RopeSize;
};

// The geometry of a page pool: blocks [N, KV, L, P, H, D] and, if quantized, scales [N, KV, L, P,
// H, S]. A page is one contiguous run of block_stride() elements, and (kv, layer) is a fixed offset
// inside it.
struct KvGeometry {
  // The page stride of a pool without gaps between its pages.
  static constexpr std::int64_t kPacked = -1;
  // Maximum number of rows of one view, because row numbers are signed 32-bit integers. Includes
  // the 256 rows that a TMA box may add.
  static constexpr std::int64_t kRowLimit = std::int64_t{1} << 31;

  std::uint32_t num_blocks = 0;  // N, the null page included
  std::uint32_t kv_dim = 2;      // KV: 1 for MLA
  std::uint32_t num_layers = 0;  // L, layers per page
  std::uint32_t page_size = 0;   // P, tokens
  std::uint32_t num_heads = 0;   // H
  std::uint32_t head_size = 0;   // D
  DType dtype = DType::kInvalid;
  DType scale_dtype = DType::kInvalid;  // kInvalid: not quantized
  std::uint32_t granularity = 1;        // G, columns per scale; 1 if not quantized
  // Distance from one page to the next, in elements and in scales.
  std::int64_t page_stride = kPacked;
  std::int64_t scale_page_stride = kPacked;

  bool quantized() const { return scale_dtype != DType::kInvalid; }
  std::int64_t row_elements() const { return std::int64_t{num_heads} * head_size; }
  // S = ceil(D / G); 0 if not quantized.
  std::uint32_t scale_groups() const {
    return quantized() ? (head_size + granularity - 1) / granularity : 0;
  }
  std::int64_t scale_row_elements() const { return std::int64_t{num_heads} * scale_groups(); }
  // Number of rows of one page over K, V and all layers, without a gap after them.
  std::int64_t packed_rows() const { return std::int64_t{kv_dim} * num_layers * page_size; }
  // Distance from one page to the next: block_stride() in elements, scale_block_stride() in scales.
  std::int64_t block_stride() const {
    return page_stride == kPacked ? packed_rows() * row_elements() : page_stride;
  }
  std::int64_t scale_block_stride() const {
    return scale_page_stride == kPacked ? packed_rows() * scale_row_elements() : scale_page_stride;
  }
  // Number of rows between two consecutive pages of one view (R).
  std::int64_t rows_per_block() const { return block_stride() / row_elements(); }
  std::int64_t scale_rows_per_block() const {
    return quantized() ? scale_block_stride() / scale_row_elements() : 0;
  }
  // Number of rows from a view's base to the end of its last page.
  std::int64_t num_kv_rows() const {
    return (std::int64_t{num_blocks} - 1) * rows_per_block() + page_size;
  }
  // Number of bytes of one page, including its scales.
  std::int64_t page_bytes() const {
    return block_stride() * DTypeSize(dtype) +
           (quantized() ? scale_block_stride() * DTypeSize(scale_dtype) : 0);
  }
  // Maximum number of blocks whose rows are within kRowLimit.
  std::int64_t max_num_blocks() const {
    return (kRowLimit - kGuardRows - page_size) /
               std::max(rows_per_block(), scale_rows_per_block()) +
           1;
  }

  // If a field is invalid, returns INVALID_ARGUMENT with the field, its value and the limit.
  absl::Status Validate() const;
  // Like Validate, but for a cache with one block of page_size tokens per sequence. Any page_size
  // of at least 1 is valid.
  absl::Status ValidateContinuous() const;

 private:
  absl::Status ValidateExtents() const;
  absl::Status ValidateTypes() const;
  absl::Status ValidateStrides() const;
};

inline absl::Status KvGeometry::ValidateExtents() const {
  if (num_blocks < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_blocks is ", num_blocks, ", the null page and one usable page need at least 2"));
  }
  if (kv_dim != 1 && kv_dim != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_dim is ", kv_dim, ", it must be 2, or 1 for MLA"));
  }
  if (kv_dim == 1 && num_heads != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_heads is ", num_heads, ", it must be 1 for MLA"));
  }
  const struct {
    const char* name;
    std::uint32_t value;
    std::uint32_t limit;
  } extents[] = {{"num_layers", num_layers, 1u << 16},
                 {"num_heads", num_heads, 1u << 16},
                 {"head_size", head_size, 1u << 16},
                 {"page_size", page_size, 1u << 30}};
  for (const auto& extent : extents) {
    if (extent.value == 0 || extent.value > extent.limit) {
      return absl::InvalidArgumentError(
          absl::StrCat(extent.name, " is ", extent.value, ", it must be 1 to ", extent.limit));
    }
  }
  return absl::OkStatus();
}

inline absl::Status KvGeometry::ValidateTypes() const {
  const bool one_byte = dtype == DType::kF8E4M3 || dtype == DType::kI8;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16 && !one_byte) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv cache dtype is ", DTypeName(dtype), ", it must be f32, bf16, f16, fp8_e4m3 or int8"));
  }
  if (!quantized()) {
    if (granularity == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("granularity is ", granularity, ", it must be 1 without scales"));
  }
  if (scale_dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale dtype is ", DTypeName(scale_dtype), ", it must be f32"));
  }
  if (!one_byte) {
    return absl::InvalidArgumentError(absl::StrCat("kv cache dtype is ", DTypeName(dtype),
                                                   ", with scales it must be fp8_e4m3 or int8"));
  }
  if (granularity != head_size && (granularity == 0 || granularity % 16 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("granularity is ", granularity,
                                                   ", it must be the head size ", head_size,
                                                   " or a multiple of 16"));
  }
  return absl::OkStatus();
}

inline absl::Status KvGeometry::ValidateStrides() const {
  const struct {
    const char* name;
    std::int64_t value;
    std::int64_t row;
  } strides[] = {{"page_stride", page_stride, row_elements()},
                 {"scale_page_stride", scale_page_stride, scale_row_elements()}};
  for (const auto& stride : strides) {
    if (stride.value == kPacked) continue;
    if (stride.row == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(stride.name, " is ", stride.value, ", but the cache has no scales"));
    }
    if (stride.value % stride.row != 0) {
      return absl::InvalidArgumentError(absl::StrCat(stride.name, " is ", stride.value,
                                                     ", it must be a multiple of the row size ",
                                                     stride.row));
    }
    if (stride.value < packed_rows() * stride.row) {
      return absl::InvalidArgumentError(
          absl::StrCat(stride.name, " is ", stride.value, ", it must be at least ",
                       packed_rows() * stride.row, ", or pages overlap"));
    }
  }
  if (num_blocks > max_num_blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks is ", num_blocks, ", a view of ", num_kv_rows(), " rows and ",
                     kGuardRows, " guard rows exceeds 2^31; at most ",
                     std::max<std::int64_t>(max_num_blocks(), 0), " blocks fit"));
  }
  return absl::OkStatus();
}

inline absl::Status KvGeometry::ValidateContinuous() const {
  QUIRE_RETURN_IF_ERROR(ValidateExtents());
  QUIRE_RETURN_IF_ERROR(ValidateTypes());
  return ValidateStrides();
}

inline absl::Status KvGeometry::Validate() const {
  if (page_size != 16 && page_size != 32 && page_size != 64 && page_size != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, ", it must be 16, 32, 64 or 128"));
  }
  return ValidateContinuous();
}

}  // namespace quire::cache
