#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct EmbeddingParams {
  const void* table;           // [vocab, hidden] f32, bf16 or f16, contiguous, any alignment
  const std::int32_t* tokens;  // [num_rows]
  float* y;                    // [num_rows, hidden], rows y_stride apart
  std::int64_t y_stride;
  DType dtype;
  std::uint32_t vocab;
  std::uint32_t hidden;
  std::uint32_t num_rows;
  float scale = 1;
};

// Computes y[m] = table[tokens[m]] * scale, widened to f32. Returns INVALID_ARGUMENT if a token is
// outside [0, vocab) (not checked on a GPU), the dtype is unsupported, or the stride is less than
// hidden.
absl::Status Embedding(const Backend& backend, const EmbeddingParams& params);

namespace internal {

absl::Status EmbeddingCuda(const CudaContext& context, const EmbeddingParams& params);
void EmbeddingCpu(const EmbeddingParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
