#pragma once

// Layer normalization of short rows, such as index keys.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct LayerNormParams {
  const float* x;       // [num_rows, columns]
  const float* weight;  // [columns]
  const float* bias;    // [columns]
  float* y;             // [num_rows, columns]; may be x
  std::uint32_t num_rows;
  std::uint32_t columns;
  float epsilon;
};

// Computes y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias, row by row.
// Both sums are in f64, over ascending columns. Returns INVALID_ARGUMENT on a GPU, and if `columns`
// is 0.
absl::Status LayerNorm(const Backend& backend, const LayerNormParams& params);

}  // namespace quire::kernels
