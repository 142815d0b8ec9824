// Multiply moves 12 bytes per element, which bounds its speed, so auto-vectorization is enough.

#include "kernels/elementwise/multiply.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status Multiply(const Backend& backend, const MultiplyParams& params) {
  if (std::min(params.x_stride, params.gate_stride) < params.columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "product of ", params.columns, " columns has strides x ", params.x_stride, ", gate ",
        params.gate_stride, ", each must be at least the number of columns"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::MultiplyCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.2,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) {
                          float* const x = params.x + m * params.x_stride;
                          const float* const gate = params.gate + m * params.gate_stride;
                          for (std::uint32_t i = 0; i < params.columns; ++i) x[i] *= gate[i];
                        }
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
