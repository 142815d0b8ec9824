#pragma once

// Between the products of latent attention and its attention: rope on the last columns of every
// query head and of the row to be cached, the row into its page, and the rotated columns of the
// queries behind those that were taken into the latent space. On the GPU this is one kernel.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"

namespace quire::kernels {

// R, the columns of a cached row, are those of the view's head; rows of all arrays have no gaps.
struct LatentStoreParams {
  const AnyKvView* rows;  // one layer, of one head (LatentView)
  FloatPtr heads;         // [num_rows, num_heads, nope_size + rope_size] queries; may be rotated
  FloatPtr latents;       // [num_rows, R] normed latent, then what is rotated; may be rotated
  FloatPtr queries;       // [num_rows, num_heads, R]; the last rope_size columns are written
  const float* cosines;   // [num_rows, rope_size / 2]
  const float* sines;     // likewise
  const std::uint32_t* row_offsets;  // [batch_size + 1]: sequence b owns rows [b] .. [b + 1] - 1
  // CUDA; null on the CPU, which finds both from row_offsets.
  const std::int32_t* token_rows;  // [num_rows] batch row of each token; -1: padding, not stored
  const std::int32_t* positions;   // [num_rows] absolute
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t num_heads;  // query heads
  std::uint32_t nope_size;
  std::uint32_t rope_size;  // even
  RopeStyle style = RopeStyle::kInterleaved;
};

// Most columns of a cached row and of its rotated part on a GPU.
inline constexpr std::uint32_t kMaxLatentColumns = 576;
inline constexpr std::uint32_t kMaxLatentRope = 128;

// Formulas of Rope and KvStore; types, padding and what is not looked at as in QkvStore. Returns
// INVALID_ARGUMENT as Rope, KvStore and CheckKvStep, for pages of several heads, or for another
// combination of types. CUDA: nope_size, rope_size and R are multiples of 4 and within the limits
// above.
absl::Status LatentStore(const Backend& backend, const LatentStoreParams& params);

namespace internal {

absl::Status LatentStoreCuda(const CudaContext& context, const LatentStoreParams& params);

}  // namespace internal
}  // namespace quire::kernels
