#pragma once

// Scores of keys for sparse attention with an indexer (IndexSpec of models/config/layer_spec.h).
// An index row is the cached index key of one token.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

// D is the head size of `keys`, the number of columns of a key and of each query head.
struct IndexScoreParams {
  const AnyKvView* keys;  // index rows of one layer, one head, including those of this step
  const float* q;         // [num_rows, num_heads, D], rotated
  const float* weights;   // [num_rows, num_heads]
  float* scores;          // [row_end - row_begin, score_stride]
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::int64_t score_stride;         // at least ScoreStride(tokens of the longest sequence)
  std::uint32_t batch_size;
  std::uint32_t row_begin;  // scores of rows [row_begin, row_end) of the step are computed
  std::uint32_t row_end;
  std::uint32_t num_heads;
  float scale;  // factor of q
  // CUDA only. Both are null on the CPU, which derives them from row_offsets.
  const std::int32_t* token_rows = nullptr;  // [row_end] sequence of each row; -1: padding
  const std::int32_t* positions = nullptr;   // [row_end] position p of each row
};

// Limits of a GPU.
inline constexpr std::uint32_t kMaxGpuIndexHeads = 64;  // maximum number of heads of an indexer
inline constexpr std::uint32_t kMaxGpuIndexSize = 128;  // maximum D

// Row i of a sequence has position p = cache_length + i and gets scores of the keys j <= p:
//   s_j = sum over heads h of weights[h] * max(0, (scale * q[h]) . k_j)
// All arithmetic is in f32. A product q . k is one ascending chain of FMAs over the columns. The
// sum is one ascending chain of FMAs over the heads. Therefore s_j depends only on the row, the
// key, D and the number of heads. NaN in q, k or weights gives NaN. Scores of keys after p are
// undefined. A GPU gives the same bits as the CPU and skips padding rows. Returns INVALID_ARGUMENT
// if the pages of `keys` are neither f32 nor bf16, or have several heads. On the CPU,
// INVALID_ARGUMENT also means that rows are outside the step, score_stride is too small or
// CheckKvStep fails. On a GPU, it also means that D is not a multiple of 4, or that D or the number
// of heads is above its limit. A GPU does not check lengths and rows.
absl::Status IndexScore(const Backend& backend, const IndexScoreParams& params);

// Returns the minimum score_stride for sequences of `tokens` tokens.
constexpr std::int64_t ScoreStride(std::uint32_t tokens) {
  return (std::int64_t{tokens} + 63) / 64 * 64;
}

// Returns an upper bound of the bytes that IndexScore uses of each Backend::workspace.
std::int64_t IndexScoreThreadBytes(std::uint32_t num_heads, std::uint32_t size);

namespace internal {

// A work item: some rows of one sequence and the keys [key_begin, key_begin + kIndexSpan).
struct IndexItem {
  std::uint32_t sequence;
  std::uint32_t row_begin;  // index of the first row in the step
  std::uint32_t num_rows;   // at most kIndexBlockRows
  std::uint32_t key_begin;
};
inline constexpr std::uint32_t kIndexSpan = 512;
inline constexpr std::uint32_t kIndexBlockRows = 8;

// Reference implementation: computes the scores of all rows in one thread.
void IndexScoreCpu(const IndexScoreParams& params);
void IndexScoreSimd(const IndexScoreParams& params, const IndexItem& item, std::byte* scratch);

absl::Status IndexScoreCuda(const CudaContext& context, const IndexScoreParams& params);

}  // namespace internal
}  // namespace quire::kernels
