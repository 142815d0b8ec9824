#include "kernels/recurrent/gate_norm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status GateNorm(const Backend& backend, const GateNormParams& params) {
  const std::int64_t length = std::int64_t{params.groups} * params.columns;
  if (length == 0 || std::min({params.x_stride, params.gate_stride, params.y_stride}) < length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gated norm of ", params.groups, " groups of ", params.columns, " has strides x ",
        params.x_stride, ", gate ", params.gate_stride, ", y ", params.y_stride,
        ", each must be at least the number of elements, which must be positive"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::GateNormCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(length),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::GateNormSimd(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
