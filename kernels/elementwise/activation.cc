#include "kernels/elementwise/activation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status GatedProduct(const Backend& backend, const GatedProductParams& params) {
  const bool has_up = !params.up.is_null();
  const std::int64_t up_stride = has_up ? params.up_stride : params.columns;
  if (std::min({params.gate_stride, up_stride, params.y_stride}) < params.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("gated product of ", params.columns, " columns has strides gate ",
                     params.gate_stride, ", up ", up_stride, ", y ", params.y_stride,
                     ", each must be at least the number of columns"));
  }
  if (params.shape.limit < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gated product has limit ", params.shape.limit, ", it must be at least 0"));
  }
  if (!has_up && (params.shape.limit != 0 || params.shape.up_offset != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("gated product without up has limit ",
                                                   params.shape.limit, " and up_offset ",
                                                   params.shape.up_offset, ", both must be 0"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::GatedProductCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.8,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::GatedProductSimd(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
