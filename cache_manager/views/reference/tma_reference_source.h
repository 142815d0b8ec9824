#pragma once

// Sources of TMA plans (tma_plan.h) for the continuous cache and the attention operands. They exist
// because the reference API (Modular MAX) has builders for these types. No request uses them.

#include <type_traits>

#include "cache_manager/views/reference/kv_continuous_view.h"
#include "cache_manager/views/reference/kv_mha_operand.h"
#include "cache_manager/views/tma_plan.h"

namespace quire::cache {

// TmaReadable and the builders find these overloads by argument-dependent lookup, so they are in
// the namespace of their arguments.
template <typename T, typename Params>
kernels::cuda::TmaSource TmaSourceOf(const ContinuousBatchingKVCache<T, Params>& view) {
  return {.base = view.blocks,
          .dtype = view.kDType,
          .num_heads = view.num_heads(),
          .head_size = view.head_size(),
          .content_size = view.head_size(),
          .rows_per_page = view.row_stride(),
          .num_pages = view.num_blocks,
          .num_rows = view.num_kv_rows(),
          .name = view.type_name()};
}
template <typename C>
kernels::cuda::TmaSource TmaSourceOf(const KVCacheMHAOperand<C>& operand) {
  using kernels::cuda::TmaSourceOf;
  return TmaSourceOf(operand.cache);
}

namespace internal {

// A plain tensor of f32 is also a flat list of scales, which CreateScaleTmaTile reads.
template <typename Operand>
kernels::cuda::TmaSource TensorTmaSource(const Operand& operand) {
  kernels::cuda::TmaSource source{.base = operand.data,
                                  .dtype = operand.kDType,
                                  .num_heads = operand.num_heads,
                                  .head_size = operand.head_size,
                                  .content_size = operand.head_size,
                                  .num_rows = operand.num_kv_rows(),
                                  .name = operand.type_name()};
  if constexpr (std::is_same_v<typename Operand::Element, float>) {
    source.scales = operand.data;
    source.scales_per_row = operand.num_heads * operand.head_size;
    source.num_scales = source.num_rows * source.scales_per_row;
  }
  return source;
}

}  // namespace internal

template <typename T>
kernels::cuda::TmaSource TmaSourceOf(const ContiguousMHAOperand<T>& operand) {
  return internal::TensorTmaSource(operand);
}
template <typename T>
kernels::cuda::TmaSource TmaSourceOf(const RaggedMHAOperand<T>& operand) {
  return internal::TensorTmaSource(operand);
}

}  // namespace quire::cache

namespace quire::kernels::cuda {

template <typename C>
inline constexpr bool kTmaRope<cache::KVCacheMHAOperand<C>> = kTmaRope<C>;

}  // namespace quire::kernels::cuda
