// The gather is bound by the latency of reading one uncached row per token, so auto-vectorization
// is enough.

#include <cstddef>
#include <cstring>

#include "kernels/elementwise/embedding.h"

namespace quire::kernels::internal {
namespace {

template <typename T>
void WidenRow(const std::byte* from, std::size_t count, float scale, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = ToFloat(value) * scale;
  }
}

}  // namespace

void EmbeddingCpu(const EmbeddingParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const std::int64_t row_bytes = params.hidden * DTypeSize(params.dtype);
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const std::byte* const row =
        static_cast<const std::byte*>(params.table) + params.tokens[m] * row_bytes;
    float* const y = params.y + m * params.y_stride;
    if (params.dtype == DType::kF32) {
      WidenRow<float>(row, params.hidden, params.scale, y);
    } else if (params.dtype == DType::kBF16) {
      WidenRow<BF16>(row, params.hidden, params.scale, y);
    } else {
      WidenRow<F16>(row, params.hidden, params.scale, y);
    }
  }
}

}  // namespace quire::kernels::internal
