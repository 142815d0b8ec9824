// ResidualAdd moves 12 bytes per element to and from L2, which bounds its speed, so
// auto-vectorization is enough.

#include "kernels/elementwise/residual.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::kernels {

absl::Status ResidualAdd(const Backend& backend, const ResidualAddParams& params) {
  if (std::min(params.x_stride, params.branch_stride) < params.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "residual addition of ", params.columns, " columns has strides x ", params.x_stride,
        ", branch ", params.branch_stride, ", each must be at least the number of columns"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::ResidualAddCuda(*backend.cuda(), params);
  }
  const float output_scale = params.stored_scale == nullptr
                                 ? params.output_scale
                                 : params.output_scale * *params.stored_scale;
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.2,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) {
                          float* const x = params.x + m * params.x_stride;
                          const float* const branch = params.branch + m * params.branch_stride;
                          for (std::uint32_t i = 0; i < params.columns; ++i) {
                            x[i] = (x[i] + params.scale * branch[i]) * output_scale;
                          }
                        }
                      });
  return absl::OkStatus();
}

absl::Status RoundRows(const Backend& backend, const RoundRowsParams& params) {
  QUIRE_CHECK(backend.cuda() != nullptr);
  if (std::min(params.x_stride, params.y_stride) < params.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "bf16 conversion of ", params.columns, " columns has strides x ", params.x_stride, ", y ",
        params.y_stride, ", each must be at least the number of columns"));
  }
  if constexpr (kHasCuda) return internal::RoundRowsCuda(*backend.cuda(), params);
  return absl::OkStatus();
}

}  // namespace quire::kernels
