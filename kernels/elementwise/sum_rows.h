#pragma once

// Sums rows, for mean pooling of hidden states and for sums over GPUs (NcclCommunicator).

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

struct SumRowsParams {
  ConstFloatPtr x;  // [num_rows, columns], f32 or, on a GPU, bf16; contiguous rows
  float* sum;       // [columns] sums of earlier calls, replaced by the result
  std::uint32_t num_rows;
  std::uint32_t columns;
  bool begins;  // true for the first call, which ignores the values in `sum`
};

// Computes sum = (begins ? 0 : sum) + x[0] + x[1] + ..., column by column in f32, from left to
// right. Rows may therefore be split over any number of calls. Returns INVALID_ARGUMENT if the type
// of x is unsupported.
absl::Status SumRows(const Backend& backend, const SumRowsParams& params);

namespace internal {

absl::Status SumRowsCuda(const CudaContext& context, const SumRowsParams& params);
// Processes columns [begin, end).
void SumRowsCpu(const SumRowsParams& params, std::int64_t begin, std::int64_t end);

}  // namespace internal
}  // namespace quire::kernels
