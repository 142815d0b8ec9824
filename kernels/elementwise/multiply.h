#pragma once

// The element-wise product of rows, for gates without an activation.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct MultiplyParams {
  float* x;           // [num_rows, columns], rows x_stride apart; replaced by the result
  const float* gate;  // [num_rows, columns], rows gate_stride apart
  std::int64_t x_stride;
  std::int64_t gate_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// Computes x = x * gate, element by element in f32. Returns INVALID_ARGUMENT if a stride is less
// than columns.
absl::Status Multiply(const Backend& backend, const MultiplyParams& params);

namespace internal {

absl::Status MultiplyCuda(const CudaContext& context, const MultiplyParams& params);

}  // namespace internal

}  // namespace quire::kernels
