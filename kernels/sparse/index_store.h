#pragma once

// Runs between the projections of an indexer and its scores (IndexSpec of
// models/config/layer_spec.h). Applies layer norm to the index keys, applies rope to queries and
// keys, and stores the keys into their pages as index rows. On a GPU this is one kernel.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"
#include "kernels/sparse/index_score.h"

namespace quire::kernels {

// D is the head size of the view, the number of columns of a key and of each query head.
struct IndexStoreParams {
  const AnyKvView* rows;             // index rows of one layer, one head (LatentView)
  float* queries;                    // [num_rows, num_heads, D]; rotated in place
  float* keys;                       // [num_rows, D]; undefined afterwards
  const float* norm_weight;          // [D]
  const float* norm_bias;            // [D]
  const float* cosines;              // [num_rows, rope_size / 2]
  const float* sines;                // [num_rows, rope_size / 2]
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  // CUDA only. Both are null on the CPU, which derives them from row_offsets.
  const std::int32_t* token_rows;  // [num_rows] batch row of each token; -1: padding, not stored
  const std::int32_t* positions;   // [num_rows] absolute
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t num_heads;
  std::uint32_t rope_size;  // even; number of rotated columns, which are the first ones
  RopeStyle style;
  float epsilon;  // epsilon of the layer norm
};

// Uses the formulas of LayerNorm, Rope and KvStore. A GPU also sums the layer norm in f64, but in
// another order. Returns INVALID_ARGUMENT if one of these ops would, and on a GPU if pages are not
// f32 or bf16 with one head, or if D is above kMaxGpuIndexSize or not a multiple of 4.
absl::Status IndexStore(const Backend& backend, const IndexStoreParams& params);

namespace internal {

absl::Status IndexStoreCuda(const CudaContext& context, const IndexStoreParams& params);

}  // namespace internal
}  // namespace quire::kernels
