#pragma once

// Runs between the QKV product and attention. Applies an optional norm (GPU only), rope to q and k,
// and an optional scale to q, then writes k and v into their pages. On a GPU this is one kernel. On
// the CPU QkvStore calls Rope and KvStore.

#include <cstdint>

#include "absl/status/status.h"
#include "base/host_device.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/exact_math.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"

namespace quire::kernels {

// The factor 1 + beta * ln(1 + floor((position + offset) / period)) of a query. There is no factor
// if beta is 0.
struct QueryScale {
  float beta = 0;
  std::uint32_t period = 0;  // tokens
  std::uint32_t offset = 0;  // tokens
};

// Returns the factor of a query, with the same bits on all devices. REQUIRES: beta is not 0.
QUIRE_HOST_DEVICE inline float QueryFactor(const QueryScale& scale, std::uint32_t position) {
  const std::uint32_t periods = (position + scale.offset) / scale.period;
  return fmaf(scale.beta, static_cast<float>(ExactLog(1 + static_cast<double>(periods))), 1.0f);
}

// Maximum number of columns of a head on a GPU.
inline constexpr std::uint32_t kMaxQkvColumns = 512;

struct QkvStoreParams {
  const AnyKvView* keys;    // one layer
  const AnyKvView* values;  // the same layer
  // [num_rows, num_heads + 2 * kv_heads, head_size]: q, k, v. q is rotated in place, and k may be
  // rotated in place. With queries_only a row contains only q.
  FloatPtr qkv;
  std::int64_t qkv_stride;
  const float* cosines;              // [num_rows, rotary_size / 2]; unused when rotary_size is 0
  const float* sines;                // as cosines
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  // CUDA only: the batch row of each token, or -1 for a padding token, which is not stored. The CPU
  // derives it from row_offsets.
  const std::int32_t* token_rows;  // [num_rows]
  // Absolute positions. The CPU, and a GPU with queries_only, read them only for q_scale.
  const std::int32_t* positions;  // [num_rows]
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t num_heads;    // query heads
  std::uint32_t rotary_size;  // even; 0: no rotation
  std::uint32_t rotary_first = 0;
  RopeStyle style = RopeStyle::kHalf;
  // CUDA only: norm weights. If not null, heads of q and k are first normalized, as by RmsNorm with
  // one group per head. Must be null on the CPU.
  const float* q_norm = nullptr;  // [head_size]
  const float* k_norm = nullptr;  // [head_size]
  float norm_epsilon = 0;
  QueryScale q_scale = {};  // multiplies q after the rotation
  // True if the layer reads the K and V of an earlier layer. Nothing is stored, and the views only
  // provide the shape of heads.
  bool queries_only = false;
};

// Uses the formulas of RmsNorm, Rope and KvStore. On the CPU qkv is f32 and pages have any type. On
// a GPU qkv is f32 or bf16. Heads are normalized and rounded, then rotated in f32 and rounded. With
// f32 activations, pages are f32. With bf16 activations they are bf16, or quantized (int8,
// fp8_e4m3) with one scale per token and head as by QuantizeGroup of
// cache_manager/views/kv_quantize.h. Returns INVALID_ARGUMENT if Rope, KvStore or CheckKvStep
// would, if the combination of types is unsupported, or if q_scale has period 0. On a GPU the
// step's lengths are not checked, padding rows are not written, and head sizes must be multiples of
// 4 up to kMaxQkvColumns.
absl::Status QkvStore(const Backend& backend, const QkvStoreParams& params);

namespace internal {

// Does the checks of QkvStoreCuda, except for types.
absl::Status CheckQkvStore(const QkvStoreParams& params);
absl::Status QkvStoreCuda(const CudaContext& context, const QkvStoreParams& params);

}  // namespace internal

}  // namespace quire::kernels
