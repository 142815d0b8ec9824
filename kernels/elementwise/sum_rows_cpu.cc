// Sums rows with a simple loop, which the compiler vectorizes over columns.

#include "kernels/elementwise/sum_rows.h"

namespace quire::kernels::internal {

void SumRowsCpu(const SumRowsParams& params, std::int64_t begin, std::int64_t end) {
  const float* x = params.x.f32();
  for (std::int64_t i = begin; i < end && params.begins; ++i) params.sum[i] = 0;
  for (std::uint32_t row = 0; row < params.num_rows; ++row, x += params.columns) {
    for (std::int64_t i = begin; i < end; ++i) params.sum[i] += x[i];
  }
}

}  // namespace quire::kernels::internal
