#include "kernels/norm/norm.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status RmsNorm(const Backend& backend, const RmsNormParams& params) {
  const std::int64_t hidden = std::int64_t{params.hidden} * params.groups;
  if (params.groups != 1 && params.residual != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "norm of ", params.groups, " groups has a residual, which only 1 group supports"));
  }
  if (hidden == 0 || params.x_stride < hidden || params.y_stride < hidden ||
      (params.residual != nullptr && params.residual_stride < hidden)) {
    return absl::InvalidArgumentError(
        absl::StrCat("norm of ", hidden, " elements has strides x ", params.x_stride, ", y ",
                     params.y_stride, ", residual ", params.residual_stride,
                     ", each must be at least the number of elements, which must be positive"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::RmsNormCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(hidden) * 0.15,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::RmsNormSimd(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
