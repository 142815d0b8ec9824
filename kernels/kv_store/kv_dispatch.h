#pragma once

// Lists the KV element types that kernels support. Defines the views and collections whose element
// type is chosen at run time. The number of heads, head size and page size are run-time fields, so
// templates are instantiated only per element type.

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "cache_manager/views/kv_cache_collection.h"
#include "cache_manager/views/kv_cache_view.h"

namespace quire::kernels {

using KvParams = cache::KVCacheStaticParams<cache::kDynamicExtent, cache::kDynamicExtent>;

// One-byte elements are quantized, with f32 scales.
template <typename T>
inline constexpr bool kQuantizedKv = sizeof(T) == 1;
template <typename T>
using KvScale = std::conditional_t<kQuantizedKv<T>, float, Unquantized>;
template <typename T>
inline constexpr std::uint32_t kKvGranularity = kQuantizedKv<T> ? cache::kDynamicExtent : 1;

// K or V of one layer.
template <typename T>
using KvView =
    cache::PagedKVCache<T, KvParams, cache::kDynamicExtent, KvScale<T>, kKvGranularity<T>>;
template <typename T>
using KvCollection = cache::PagedKVCacheCollection<T, KvParams, cache::kDynamicExtent, KvScale<T>,
                                                   kKvGranularity<T>>;

// The list of element types. A new type is added here and in MakeKvCollection.
template <template <typename> typename Of>
using OverKvElements = std::variant<Of<float>, Of<BF16>, Of<F16>, Of<F8E4M3>, Of<std::int8_t>>;

using AnyKvView = OverKvElements<KvView>;
using AnyKvCollection = OverKvElements<KvCollection>;

// Creates the collection for geometry.dtype over the pool. `blocks` is the address of page 0 of
// layer 0's K. `scales` is the address of the scales of this page if the pool is quantized. Returns
// INVALID_ARGUMENT for a dtype that is not in the list, or the error of the collection's checks.
inline absl::StatusOr<AnyKvCollection> MakeKvCollection(const cache::KvGeometry& geometry,
                                                        void* blocks,
                                                        const cache::KvStepInputs& inputs,
                                                        void* scales = nullptr) {
  const auto make = [&]<typename T>(std::type_identity<T>) -> absl::StatusOr<AnyKvCollection> {
    cache::KvPoolPointers<T, KvScale<T>> pool;
    pool.blocks = static_cast<T*>(blocks);
    pool.scales = static_cast<decltype(pool.scales)>(scales);
    QUIRE_ASSIGN_OR_RETURN(KvCollection<T> collection,
                           KvCollection<T>::Create(geometry, pool, inputs));
    return AnyKvCollection(std::move(collection));
  };
  switch (geometry.dtype) {
    case DType::kF32:
      return make(std::type_identity<float>());
    case DType::kBF16:
      return make(std::type_identity<BF16>());
    case DType::kF16:
      return make(std::type_identity<F16>());
    case DType::kF8E4M3:
      return make(std::type_identity<F8E4M3>());
    case DType::kI8:
      return make(std::type_identity<std::int8_t>());
    default:
      return absl::InvalidArgumentError(absl::StrCat("kv cache dtype ", DTypeName(geometry.dtype),
                                                     " has no kernels, supported are f32, "
                                                     "bf16, f16, fp8_e4m3 and int8"));
  }
}

// Return the view of K and of V of one layer. REQUIRES: the collection has this layer.
inline AnyKvView KeyView(const AnyKvCollection& collection, std::uint32_t layer) {
  return std::visit([&](const auto& c) { return AnyKvView(c.get_key_cache(layer)); }, collection);
}
inline AnyKvView ValueView(const AnyKvCollection& collection, std::uint32_t layer) {
  return std::visit([&](const auto& c) { return AnyKvView(c.get_value_cache(layer)); }, collection);
}

// Returns the view of MLA cache rows, which are both K and V. L layers share a collection of L / 2
// layers: even layers use the K half, odd layers the V half. REQUIRES: the collection has a layer
// `layer / 2`.
inline AnyKvView LatentView(const AnyKvCollection& collection, std::uint32_t layer) {
  return layer % 2 == 0 ? KeyView(collection, layer / 2) : ValueView(collection, layer / 2);
}

inline DType KvDType(const AnyKvView& view) {
  return std::visit([](const auto& v) { return v.kDType; }, view);
}

// Properties of a view that ops check before they access memory.
struct KvShape {
  DType dtype;
  std::uint32_t num_heads;
  std::uint32_t head_size;
  std::uint32_t page_size;
  std::uint32_t batch_size;
  std::uint32_t lookup_stride;
  std::uint32_t granularity;  // columns per scale; 1 if not quantized
  friend bool operator==(const KvShape&, const KvShape&) = default;
};
inline KvShape KvShapeOf(const AnyKvView& view) {
  return std::visit(
      [](const auto& v) {
        return KvShape{v.kDType,     v.num_heads(),   v.head_size(),  v.page_size(),
                       v.batch_size, v.lookup_stride, v.granularity()};
      },
      view);
}

// Checks a step on the CPU. Returns INVALID_ARGUMENT if the views have different shapes or fewer
// than batch_size sequences, or if quantized views have more than one scale per token and head.
// Returns INVALID_ARGUMENT if row_offsets decrease, or if a sequence's lookup table is too small
// for its cached and new tokens. Sequence b has row_offsets[b + 1] - row_offsets[b] new tokens.
absl::Status CheckKvStep(const AnyKvView& keys, const AnyKvView& values,
                         const std::uint32_t* row_offsets, std::uint32_t batch_size);

}  // namespace quire::kernels
