#include "kernels/activation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status SiluProduct(const Backend& backend, const SiluProductParams& params) {
  if (std::min({params.gate_stride, params.up_stride, params.y_stride}) < params.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gated product of ", params.columns, " columns has strides gate ", params.gate_stride,
        ", up ", params.up_stride, ", y ", params.y_stride, ", each must hold a row"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SiluProductCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.8,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::SiluProductSimd(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
