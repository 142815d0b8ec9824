#pragma once

// What happens between the QKV product and attention: rope on q and k, which a GPU may norm before,
// then k and v into their pages. On the GPU this is one kernel and the only writer of KV values; on
// the CPU it is Rope followed by KvStore.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"

namespace quire::kernels {

struct QkvStoreParams {
  const AnyKvView* keys;    // one layer
  const AnyKvView* values;  // the same layer
  // [num_rows, num_heads + 2 * kv_heads, head_size] q, k, v; q is rotated in place, k may be.
  FloatPtr qkv;
  std::int64_t qkv_stride;
  const float* cosines;              // [num_rows, rotary_size / 2]; unused when rotary_size is 0
  const float* sines;                // likewise
  const std::uint32_t* row_offsets;  // [batch_size + 1]: sequence b owns rows [b] .. [b + 1] - 1
  // CUDA; null on the CPU, which finds both from row_offsets.
  const std::int32_t* token_rows;  // [num_rows] batch row of each token; -1: padding, not stored
  const std::int32_t* positions;   // [num_rows] absolute
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t num_heads;    // query heads
  std::uint32_t rotary_size;  // even; 0: no rotation
  std::uint32_t rotary_first = 0;
  RopeStyle style = RopeStyle::kHalf;
  // CUDA: heads of q and k are normed first, as by RmsNorm with a group for each. Null: they are
  // not; always null on the CPU.
  const float* q_norm = nullptr;  // [head_size]
  const float* k_norm = nullptr;  // [head_size]
  float norm_epsilon = 0;
};

// Formulas of RmsNorm, Rope and KvStore. CPU: qkv is f32, pages of any type. CUDA: qkv is f32 or
// bf16, normed and rounded, then rotated in f32 and rounded; pages are f32 with f32 activations,
// bf16 or f16 with bf16 ones, or quantised (int8, fp8_e4m3) with bf16 ones, one scale per token and
// head as QuantizeGroup of cache_manager/views/kv_quantize.h makes it. Returns INVALID_ARGUMENT as
// Rope, KvStore and CheckKvStep, or for another combination of types. CUDA: the step's lengths are
// not looked at, rows of padding are left alone altogether, and head sizes are multiples of 4 up to
// 256.
absl::Status QkvStore(const Backend& backend, const QkvStoreParams& params);

namespace internal {

// The errors of QkvStoreCuda, types aside.
absl::Status CheckQkvStore(const QkvStoreParams& params);
absl::Status QkvStoreCuda(const CudaContext& context, const QkvStoreParams& params);

}  // namespace internal

}  // namespace quire::kernels
