#pragma once

// Copies columns of every head from one head layout to another.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct CopyHeadColumnsParams {
  const float* x;  // [num_rows, num_heads, x_head_size], rows x_stride apart
  float* y;        // [num_rows, num_heads, y_head_size], rows y_stride apart; must not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t num_heads;
  std::uint32_t x_head_size;
  std::uint32_t y_head_size;
  std::uint32_t x_first;  // first column of a head of x to copy
  std::uint32_t y_first;  // first column of a head of y to write
  std::uint32_t columns;
};

// Sets y[m][h][y_first + i] = x[m][h][x_first + i] for i < columns. Returns INVALID_ARGUMENT if the
// columns exceed a head or a stride is less than the size of all heads. On a GPU always returns
// INVALID_ARGUMENT, because LatentStore copies the columns there.
absl::Status CopyHeadColumns(const Backend& backend, const CopyHeadColumnsParams& params);

}  // namespace quire::kernels
