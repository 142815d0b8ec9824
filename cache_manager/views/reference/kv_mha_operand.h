#pragma once

// Operands of attention: one set of members to read keys or values from a cache, from the scales of
// a cache, or from a plain tensor. An operand adds no state to the object that it wraps.
//
// No request uses operands, because the kernels read views. Operands exist because the reference
// API (Modular MAX) has them. Tests check that the views agree with them.
//
// Every member of an operand takes (b, t, h, d). Members of a cache have two orders of arguments
// (kv_cache_view.h).
//
// Place:      between the views and the attention kernels.
// Invariants: those of the wrapped object.
// Threads:    immutable values.
// Lifetime:   valid while the wrapped memory is.

#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/host_device.h"
#include "base/tensor_view.h"
#include "base/vec.h"
#include "cache_manager/views/kv_cache_view.h"
#include "cache_manager/views/kv_row_indices.h"

namespace quire::cache {

// An operand that reads a cache, paged or continuous.
template <typename C>
struct KVCacheMHAOperand {
  using Cache = C;
  using Element = typename C::Element;
  using Scale = typename C::Scale;
  using DeviceType = KVCacheMHAOperand;
  static constexpr DType kDType = C::kDType;
  static constexpr DType kScaleDType = C::kScaleDType;
  static constexpr std::uint32_t kPageSize = C::kPageSize;
  static constexpr bool kQuantized = C::kQuantized;
  static constexpr std::uint32_t kGranularity = C::kGranularity;
  // cache_length counts the tokens before this step.
  static constexpr bool kLengthIncludesNew = false;

  C cache;

  static std::string type_name() { return absl::StrCat("KVCacheMHAOperand<", C::type_name(), ">"); }

  template <std::uint32_t Tile>
  requires(C::template kPointerTile<Tile>)
      QUIRE_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                       std::uint32_t h, std::uint32_t d = 0) const {
    return cache.template block_paged_ptr<Tile>(b, t, h, d);
  }
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    return cache.row_idx(b, t);
  }
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const { return cache.num_kv_rows(); }
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    return cache.cache_length(b);
  }
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return cache.max_context_length(); }
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    return cache.get_tma_row(encoded);
  }
  QUIRE_HOST_DEVICE std::int32_t sparse_tma_row(std::uint32_t b, std::int32_t t) const {
    return cache.sparse_tma_row(b, t);
  }
  QUIRE_HOST_DEVICE KvTmaCoords kv_tma_coords(std::uint32_t b, std::uint32_t t) const {
    return cache.kv_tma_coords(b, t);
  }
  QUIRE_HOST_DEVICE KvTmaCoords scale_tma_coords(std::uint32_t b,
                                                 std::uint32_t t) const requires kQuantized {
    return cache.scale_tma_coords(b, t);
  }
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(C::template kRowTile<BN, Alignment, PairCta>)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, kPageSize, PairCta, IsLeader> populate(
          std::uint32_t b, std::uint32_t base)
  const { return cache.template populate<BN, Alignment, PairCta, IsLeader>(b, base); }
  QUIRE_HOST_DEVICE const Scale* scales_block_paged_ptr(
      std::uint32_t b, std::uint32_t t, std::uint32_t h,
      std::uint32_t d = 0) const requires kQuantized {
    return cache.scales_block_paged_ptr(b, t, h, d);
  }
  QUIRE_HOST_DEVICE const Scale* scales_raw_ptr() const requires kQuantized {
    return cache.scales_raw_ptr();
  }
  // Takes (b, t, h, d); load_scale of the cache takes (b, h, t, d).
  template <int Width>
  requires(kQuantized&& KvWidth<Width>)
      QUIRE_HOST_DEVICE Vec<Scale, Width> load_scale(std::uint32_t b, std::uint32_t t,
                                                     std::uint32_t h, std::uint32_t d)
  const { return cache.template load_scale<Width>(b, h, t, d); }
};
template <typename C>
KVCacheMHAOperand(C) -> KVCacheMHAOperand<C>;

// An operand whose elements are the scales of a quantized cache. Rows and tiles come from the
// lookup table of the scales. Sparse rows are rows of the values, because sparse indices refer to
// the values.
template <typename C>
requires(C::kQuantized) struct KVCacheScalesMHAOperand {
  using Cache = C;
  using Element = typename C::Scale;
  using Scale = typename C::Scale;
  using DeviceType = KVCacheScalesMHAOperand;
  static constexpr DType kDType = C::kScaleDType;
  static constexpr DType kScaleDType = C::kScaleDType;
  static constexpr std::uint32_t kPageSize = C::kPageSize;
  static constexpr bool kQuantized = false;  // a scale has no scale
  static constexpr std::uint32_t kGranularity = C::kGranularity;
  static constexpr bool kLengthIncludesNew = false;

  C cache;

  static std::string type_name() {
    return absl::StrCat("KVCacheScalesMHAOperand<", C::type_name(), ">");
  }

  template <std::uint32_t Tile>
  requires(C::template kPointerTile<Tile>)
      QUIRE_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                       std::uint32_t h, std::uint32_t d = 0) const {
    QUIRE_DCHECK(Tile <= cache.page_size() && t % Tile == 0);
    return cache.scales_block_paged_ptr(b, t, h, d);
  }
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    return cache.scale_row_idx(b, t);
  }
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const { return cache.num_scale_rows(); }
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    return cache.cache_length(b);
  }
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return cache.max_context_length(); }
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    return cache.get_tma_row(encoded);
  }
  QUIRE_HOST_DEVICE std::int32_t sparse_tma_row(std::uint32_t b, std::int32_t t) const {
    return cache.sparse_tma_row(b, t);
  }
  // Returns (scale row, 0), because a descriptor of scales numbers rows through the whole view.
  QUIRE_HOST_DEVICE KvTmaCoords kv_tma_coords(std::uint32_t b, std::uint32_t t) const {
    return {cache.scale_row_idx(b, t), 0};
  }
  QUIRE_HOST_DEVICE KvTmaCoords scale_tma_coords(std::uint32_t b, std::uint32_t t) const {
    return cache.scale_tma_coords(b, t);
  }
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(C::template kRowTile<BN, Alignment, PairCta>)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, kPageSize, PairCta, IsLeader> populate(
          std::uint32_t b, std::uint32_t base)
  const { return PopulateTile<BN, Alignment, PairCta, IsLeader>(cache.scale_table_row(b), base); }
};
template <typename C>
KVCacheScalesMHAOperand(C) -> KVCacheScalesMHAOperand<C>;

// An operand that reads a packed tensor [B, S_max, H, D], one row of tokens per sequence.
template <typename T>
struct ContiguousMHAOperand {
  using Element = std::remove_const_t<T>;
  using Scale = Unquantized;
  using DeviceType = ContiguousMHAOperand;
  static constexpr DType kDType = kDTypeOf<Element>;
  static constexpr DType kScaleDType = DType::kInvalid;
  static constexpr std::uint32_t kPageSize = 0;
  static constexpr bool kQuantized = false;
  static constexpr std::uint32_t kGranularity = 1;
  // The tensor contains this step's tokens already.
  static constexpr bool kLengthIncludesNew = true;

  const Element* data = nullptr;           // [batch_size, max_tokens, num_heads, head_size]
  const std::uint32_t* lengths = nullptr;  // [batch_size]; null: every sequence has max_tokens
  std::uint32_t batch_size = 0;
  std::uint32_t max_tokens = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t head_size = 0;

  // REQUIRES: `tensor` is packed.
  static ContiguousMHAOperand FromTensor(const TensorView<const Element, 4>& tensor,
                                         const std::uint32_t* lengths = nullptr) {
    const auto packed = TensorView<const Element, 4>::RowMajor(tensor.data(), tensor.extents);
    QUIRE_CHECK(tensor.strides == packed.strides);
    return {tensor.data(),
            lengths,
            static_cast<std::uint32_t>(tensor.extent(0)),
            static_cast<std::uint32_t>(tensor.extent(1)),
            static_cast<std::uint32_t>(tensor.extent(2)),
            static_cast<std::uint32_t>(tensor.extent(3))};
  }
  static std::string type_name() {
    return absl::StrCat("ContiguousMHAOperand<", DTypeName(kDType), ">");
  }

  template <std::uint32_t Tile>
  requires(Tile >= 1)
      QUIRE_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                       std::uint32_t h, std::uint32_t d = 0) const {
    QUIRE_DCHECK(t + Tile <= max_tokens && h < num_heads && d < head_size);
    return data + ((std::int64_t{row_idx(b, t)} * num_heads + h) * head_size + d);
  }
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    QUIRE_DCHECK(b < batch_size && t < max_tokens);
    return b * max_tokens + t;
  }
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const {
    return std::int64_t{batch_size} * max_tokens;
  }
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    QUIRE_DCHECK(b < batch_size);
    return lengths != nullptr ? lengths[b] : max_tokens;
  }
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return max_tokens; }
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    return encoded < 0 ? -1 : encoded;
  }
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(ValidTile(BN, 0, PairCta) && Alignment >= 1)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, 0, PairCta, IsLeader> populate(std::uint32_t b,
                                                                           std::uint32_t base)
  const {
    QUIRE_DCHECK(base % Alignment == 0);
    return {{row_idx(b, base)}};
  }
};

// An operand that reads a packed tensor [T, H, D]. Sequence b has rows [row_offsets[b],
// row_offsets[b + 1]).
template <typename T>
struct RaggedMHAOperand {
  using Element = std::remove_const_t<T>;
  using Scale = Unquantized;
  using DeviceType = RaggedMHAOperand;
  static constexpr DType kDType = kDTypeOf<Element>;
  static constexpr DType kScaleDType = DType::kInvalid;
  static constexpr std::uint32_t kPageSize = 0;
  static constexpr bool kQuantized = false;
  static constexpr std::uint32_t kGranularity = 1;
  static constexpr bool kLengthIncludesNew = true;

  const Element* data = nullptr;               // [num_tokens, num_heads, head_size]
  const std::uint32_t* row_offsets = nullptr;  // [batch_size + 1], ascending from 0 to num_tokens
  std::uint32_t batch_size = 0;
  std::uint32_t num_tokens = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t head_size = 0;
  std::uint32_t max_length = 0;  // maximum number of rows of a sequence

  // REQUIRES: `tensor` is packed.
  static RaggedMHAOperand FromTensor(const TensorView<const Element, 3>& tensor,
                                     const TensorView<const std::uint32_t, 1>& row_offsets,
                                     std::uint32_t max_length) {
    const auto packed = TensorView<const Element, 3>::RowMajor(tensor.data(), tensor.extents);
    QUIRE_CHECK(tensor.strides == packed.strides);
    QUIRE_CHECK(row_offsets.extent(0) >= 1 && row_offsets.stride(0) == 1);
    return {tensor.data(),
            row_offsets.data(),
            static_cast<std::uint32_t>(row_offsets.extent(0) - 1),
            static_cast<std::uint32_t>(tensor.extent(0)),
            static_cast<std::uint32_t>(tensor.extent(1)),
            static_cast<std::uint32_t>(tensor.extent(2)),
            max_length};
  }
  static std::string type_name() {
    return absl::StrCat("RaggedMHAOperand<", DTypeName(kDType), ">");
  }

  template <std::uint32_t Tile>
  requires(Tile >= 1)
      QUIRE_HOST_DEVICE const Element* block_paged_ptr(std::uint32_t b, std::uint32_t t,
                                                       std::uint32_t h, std::uint32_t d = 0) const {
    QUIRE_DCHECK(h < num_heads && d < head_size);
    return data + ((std::int64_t{row_idx(b, t)} * num_heads + h) * head_size + d);
  }
  QUIRE_HOST_DEVICE std::uint32_t row_idx(std::uint32_t b, std::uint32_t t) const {
    QUIRE_DCHECK(b < batch_size);
    return row_offsets[b] + t;
  }
  QUIRE_HOST_DEVICE std::int64_t num_kv_rows() const { return num_tokens; }
  QUIRE_HOST_DEVICE std::uint32_t cache_length(std::uint32_t b) const {
    QUIRE_DCHECK(b < batch_size);
    return row_offsets[b + 1] - row_offsets[b];
  }
  QUIRE_HOST_DEVICE std::uint32_t max_context_length() const { return max_length; }
  QUIRE_HOST_DEVICE std::int32_t get_tma_row(std::int32_t encoded) const {
    return encoded < 0 ? -1 : encoded;
  }
  template <std::uint32_t BN, std::uint32_t Alignment, bool PairCta = false, bool IsLeader = true>
  requires(ValidTile(BN, 0, PairCta) && Alignment >= 1)
      QUIRE_HOST_DEVICE PagedRowIndices<BN, 0, PairCta, IsLeader> populate(std::uint32_t b,
                                                                           std::uint32_t base)
  const {
    QUIRE_DCHECK(base % Alignment == 0);
    return {{row_idx(b, base)}};
  }
};

// Returns the number of keys that the last of q_len new tokens of row b may read.
template <typename Operand>
QUIRE_HOST_DEVICE inline std::uint32_t num_keys(const Operand& operand, std::uint32_t b,
                                                std::uint32_t q_len) {
  return operand.cache_length(b) + (Operand::kLengthIncludesNew ? 0 : q_len);
}

}  // namespace quire::cache
