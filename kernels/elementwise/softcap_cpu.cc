#include <cmath>

#include "kernels/elementwise/softcap.h"

namespace quire::kernels::internal {

void SoftcapCpu(const SoftcapParams& params, std::int64_t begin, std::int64_t end) {
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    float* const x = params.x + m * params.x_stride;  // [columns]
    for (std::int64_t i = begin; i < end; ++i) {
      const float scaled = x[i] * params.scale;
      const bool is_capped = params.cap > 0 && !std::isinf(scaled);
      x[i] = is_capped ? params.cap * std::tanh(scaled / params.cap) : scaled;
    }
  }
}

}  // namespace quire::kernels::internal
