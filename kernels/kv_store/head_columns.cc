#include "kernels/kv_store/head_columns.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status CopyHeadColumns(const Backend& backend, const CopyHeadColumnsParams& params) {
  if (backend.cuda() != nullptr) {
    return absl::InvalidArgumentError("CopyHeadColumns is not supported on a GPU: use LatentStore");
  }
  const std::int64_t heads = params.num_heads;
  if (std::int64_t{params.x_first} + params.columns > params.x_head_size ||
      std::int64_t{params.y_first} + params.columns > params.y_head_size ||
      params.x_stride < heads * params.x_head_size ||
      params.y_stride < heads * params.y_head_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot copy ", params.columns, " columns from column ", params.x_first,
                     " of heads of ", params.x_head_size, ", stride ", params.x_stride,
                     ", to column ", params.y_first, " of heads of ", params.y_head_size,
                     ", stride ", params.y_stride, ": the columns must be inside a head, and each ",
                     "stride must be at least the size of ", heads, " heads"));
  }
  backend.ParallelFor(
      params.num_rows, static_cast<double>(heads) * params.columns * 0.2,
      [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t m = begin; m < end; ++m) {
          for (std::int64_t h = 0; h < heads; ++h) {
            std::memcpy(params.y + m * params.y_stride + h * params.y_head_size + params.y_first,
                        params.x + m * params.x_stride + h * params.x_head_size + params.x_first,
                        params.columns * sizeof(float));
          }
        }
      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
