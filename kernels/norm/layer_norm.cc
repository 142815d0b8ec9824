#include "kernels/norm/layer_norm.h"

#include <cmath>

namespace quire::kernels {
namespace {

void NormRow(const LayerNormParams& params, const float* x, float* y) {
  double sum = 0;
  for (std::uint32_t c = 0; c < params.columns; ++c) sum += double{x[c]};
  const double mean = sum / params.columns;
  double squares = 0;
  for (std::uint32_t c = 0; c < params.columns; ++c) {
    squares += (double{x[c]} - mean) * (double{x[c]} - mean);
  }
  const double factor = 1 / std::sqrt(squares / params.columns + double{params.epsilon});
  for (std::uint32_t c = 0; c < params.columns; ++c) {
    const auto normed = static_cast<float>((double{x[c]} - mean) * factor);
    y[c] = normed * params.weight[c] + params.bias[c];
  }
}

}  // namespace

absl::Status LayerNorm(const Backend& backend, const LayerNormParams& params) {
  if (backend.cuda() != nullptr) {
    return absl::InvalidArgumentError("LayerNorm is not supported on a GPU");
  }
  if (params.columns == 0) {
    return absl::InvalidArgumentError("LayerNorm has 0 columns, there must be at least 1");
  }
  backend.ParallelFor(
      params.num_rows, params.columns * 1.5, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t m = begin; m < end; ++m) {
          NormRow(params, params.x + m * params.columns, params.y + m * params.columns);
        }
      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
