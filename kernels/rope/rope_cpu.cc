// The rotation takes less than 1 % of the time of a layer, so auto-vectorization is enough.

#include <cmath>
#include <cstddef>

#include "kernels/rope/rope.h"

namespace quire::kernels::internal {
namespace {

// Rotates the pairs of one head. The first columns of adjacent pairs are `stride` apart. The second
// column of a pair is `other` columns after the first.
void RotateHead(float* x, const float* cosines, const float* sines, std::size_t pairs,
                std::size_t stride, std::size_t other) {
  for (std::size_t i = 0; i < pairs; ++i) {
    float* const first = x + i * stride;
    float* const second = first + other;
    const float x0 = *first;
    const float x1 = *second;
    *first = x0 * cosines[i] - x1 * sines[i];
    *second = x1 * cosines[i] + x0 * sines[i];
  }
}

}  // namespace

void RopeAnglesCpu(const RopeAnglesParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float position = static_cast<float>(params.positions[m]);
    for (std::uint32_t i = 0; i < params.num_pairs; ++i) {
      const float angle = position * params.inv_freq[i];
      params.cosines[m * params.num_pairs + i] = std::cos(angle) * params.attention_factor;
      params.sines[m * params.num_pairs + i] = std::sin(angle) * params.attention_factor;
    }
  }
}

void RopeCpu(const RopeParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const std::size_t pairs = params.rotary_size / 2;
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float* const cosines = params.cosines + m * static_cast<std::int64_t>(pairs);
    const float* const sines = params.sines + m * static_cast<std::int64_t>(pairs);
    for (std::uint32_t h = 0; h < params.num_heads; ++h) {
      float* const x =
          params.x + m * params.x_stride + std::int64_t{h} * params.head_size + params.rotary_first;
      if (params.style == RopeStyle::kHalf) {
        RotateHead(x, cosines, sines, pairs, 1, pairs);
      } else {
        RotateHead(x, cosines, sines, pairs, 2, 1);
      }
    }
  }
}

}  // namespace quire::kernels::internal
