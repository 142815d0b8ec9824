#pragma once

// Scores of keys for a learned selection (IndexSpec of models/config/layer_spec.h). CPU only.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct IndexScoreParams {
  const AnyKvView* keys;  // index rows of one layer, one head, with this step's rows already stored
  const float* q;         // [num_rows, num_heads, size], rotated
  const float* weights;   // [num_rows, num_heads]
  float* scores;          // [row_end - row_begin, score_stride]
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::int64_t score_stride;         // at least ScoreStride(tokens of the longest sequence)
  std::uint32_t batch_size;
  std::uint32_t row_begin;  // the rows of the step whose scores are computed
  std::uint32_t row_end;
  std::uint32_t num_heads;
  float scale;  // factor of q
};

// Row i of a sequence has position p = cache_length + i and gets scores of the keys j <= p:
//   s_j = sum over heads h of weights[h] * max(0, (scale * q[h]) . k_j)
// All arithmetic is in f32. A product q . k is one ascending chain of FMAs over the columns. The
// sum is one ascending chain of FMAs over the heads. So s_j depends only on the row, the key, the
// size and the number of heads. NaN in q, k or weights gives NaN. Scores behind p are undefined.
// Returns INVALID_ARGUMENT on a GPU, for pages that are not f32 or bf16 or have several heads, and
// for rows outside the step. Also returns it if score_stride is too small and if CheckKvStep does.
absl::Status IndexScore(const Backend& backend, const IndexScoreParams& params);

// Returns the minimum score_stride for sequences of `tokens` tokens.
constexpr std::int64_t ScoreStride(std::uint32_t tokens) {
  return (std::int64_t{tokens} + 63) / 64 * 64;
}

// Returns the bytes of each Backend::workspace that IndexScore uses at most.
std::int64_t IndexScoreThreadBytes(std::uint32_t num_heads, std::uint32_t size);

namespace internal {

// Rows of one sequence and keys [key_begin, key_begin + kIndexSpan).
struct IndexItem {
  std::uint32_t sequence;
  std::uint32_t row_begin;  // first row, counted in the step
  std::uint32_t num_rows;   // at most kIndexBlockRows
  std::uint32_t key_begin;
};
inline constexpr std::uint32_t kIndexSpan = 512;
inline constexpr std::uint32_t kIndexBlockRows = 8;

// Reference implementation: scores of all rows, one thread.
void IndexScoreCpu(const IndexScoreParams& params);
void IndexScoreSimd(const IndexScoreParams& params, const IndexItem& item, std::byte* scratch);

}  // namespace internal
}  // namespace quire::kernels
