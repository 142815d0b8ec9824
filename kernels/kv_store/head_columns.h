#pragma once

// Columns of every head, from one layout of heads to another.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct CopyHeadColumnsParams {
  const float* x;  // [num_rows, num_heads, x_head_size], rows x_stride apart
  float* y;        // [num_rows, num_heads, y_head_size], rows y_stride apart; does not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t num_heads;
  std::uint32_t x_head_size;
  std::uint32_t y_head_size;
  std::uint32_t x_first;  // first column copied,
  std::uint32_t y_first;  // and where it goes
  std::uint32_t columns;
};

// y[m][h][y_first + i] = x[m][h][x_first + i] for i below columns. Returns INVALID_ARGUMENT for
// columns beyond a head or a stride below the heads; on a GPU always, since there LatentStore does
// this.
absl::Status CopyHeadColumns(const Backend& backend, const CopyHeadColumnsParams& params);

}  // namespace quire::kernels
