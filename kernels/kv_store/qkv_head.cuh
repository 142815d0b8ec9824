#pragma once

// One warp processes a head between the QKV product and attention. The head is normalized if the
// model requires it and rotated in f32. A q head is written back in place. A k or v head is written
// into its page (kv_head.cuh).

#include <cstdint>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/kv_head.cuh"
#include "kernels/kv_store/qkv_store.h"

namespace quire::kernels::kv_head {

template <typename T, typename E>
struct QkvStoreArgs {
  KvView<E> keys;
  KvView<E> values;
  T* qkv;
  Rotation rotation;
  HeadNorm q_norm;
  HeadNorm k_norm;
  const std::int32_t* token_rows;
  const std::int32_t* positions;
  std::int64_t qkv_stride;
  std::uint32_t num_heads;
  std::uint32_t all_heads;  // number of heads of q, k and v, or of q only
  QueryScale q_scale;
};

template <typename T, typename E>
QkvStoreArgs<T, E> QkvArgsOf(const QkvStoreParams& params, const KvView<E>& keys,
                             const KvView<E>& values) {
  return {keys,
          values,
          params.qkv.as<T>(),
          {params.cosines, params.sines, params.rotary_size, params.rotary_first, params.style},
          {params.q_norm, params.norm_epsilon},
          {params.k_norm, params.norm_epsilon},
          params.token_rows,
          params.positions,
          params.qkv_stride,
          params.num_heads,
          params.num_heads + (params.queries_only ? 0 : 2 * keys.num_heads()),
          params.q_scale};
}

// Processes head `head` of row `row`. Heads of q, k and v are numbered consecutively. Padding rows
// and nonexistent heads are skipped. REQUIRES: a head has at most kPieces pieces of 32 lanes x 4
// columns.
template <std::uint32_t kPieces, typename T, typename E>
__device__ __forceinline__ void StoreQkvHead(const QkvStoreArgs<T, E>& args, std::int64_t row,
                                             std::uint32_t head) {
  const std::uint32_t kv_heads = args.keys.num_heads();
  const std::uint32_t head_size = args.keys.head_size();
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0 || head >= args.all_heads) return;
  T* const x = args.qkv + row * args.qkv_stride + std::int64_t{head} * head_size;
  const bool is_value = head >= args.num_heads + kv_heads;
  HeadNorm norm = head < args.num_heads ? args.q_norm : args.k_norm;
  if (is_value) norm.weight = nullptr;
  HeadValues<kPieces> values;
  ReadHead<kPieces>(args.rotation, x, head_size, row, !is_value, values, norm);
  cuda::SyncWarp();
  if (head < args.num_heads) {
    const float factor =
        args.q_scale.beta == 0
            ? 1.0f
            : QueryFactor(args.q_scale, static_cast<std::uint32_t>(args.positions[row]));
#pragma unroll
    for (std::uint32_t j = 0; j < kPieces; ++j) {
      const std::uint32_t d = FirstColumn(j);
      if (d >= head_size) break;
      Vec<T, kColumns> out;
#pragma unroll
      for (std::uint32_t c = 0; c < kColumns; ++c) {
        out.lane[c] = FromFloat<T>(cuda::Mul(values[j][c], factor));
      }
      cache::StoreVector<kColumns>(x + d, out);
    }
    return;
  }
  StoreHead<kPieces, E>(
      is_value ? args.values : args.keys,
      {static_cast<std::uint32_t>(batch_row), head - args.num_heads - (is_value ? kv_heads : 0),
       static_cast<std::uint32_t>(args.positions[row])},
      values);
}

}  // namespace quire::kernels::kv_head
