#pragma once

// Runs between the projections of MLA and its attention. Applies rope, if the model has it, to the
// last columns of every query head and of the row to be cached. Stores the row into its page.
// Attention reads `queries`, whose first columns are the other query columns, projected into the
// latent space. The rotated columns are copied after these columns. On a GPU this op is one kernel.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"

namespace quire::kernels {

// R, the number of columns of a cached row, is the head size of the view. Rows of all arrays are
// contiguous.
struct LatentStoreParams {
  const AnyKvView* rows;  // view of one layer with one head (LatentView)
  FloatPtr heads;  // [num_rows, num_heads, nope_size + rope_size] queries; may be rotated in place
  // [num_rows, R] normalized latent, then the rope columns; may be rotated in place
  FloatPtr latents;
  FloatPtr queries;      // [num_rows, num_heads, R]; the last rope_size columns are written
  const float* cosines;  // [num_rows, rope_size / 2]; null: no rope
  const float* sines;    // as cosines
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  // CUDA only. Both are null on the CPU, which derives them from row_offsets.
  const std::int32_t* token_rows;  // [num_rows] batch row of each token; -1: padding, not stored
  const std::int32_t* positions;   // [num_rows] absolute
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t num_heads;  // query heads
  std::uint32_t nope_size;
  std::uint32_t rope_size;  // even
  RopeStyle style = RopeStyle::kInterleaved;
};

// Maximum number of columns of a cached row, and of its rope columns, on a GPU.
inline constexpr std::uint32_t kMaxLatentColumns = 576;
inline constexpr std::uint32_t kMaxLatentRope = 128;

// Uses the formulas of Rope and KvStore. Types, padding and unchecked arguments are as in QkvStore.
// Returns INVALID_ARGUMENT if Rope, KvStore or CheckKvStep would, if pages have several heads, or
// if the combination of types is unsupported. On a GPU nope_size, rope_size and R must be multiples
// of 4, and R and rope_size at most the limits above.
absl::Status LatentStore(const Backend& backend, const LatentStoreParams& params);

namespace internal {

absl::Status LatentStoreCuda(const CudaContext& context, const LatentStoreParams& params);

}  // namespace internal
}  // namespace quire::kernels
