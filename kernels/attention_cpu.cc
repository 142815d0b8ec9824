// The plain attention: for each row and head all scores, their maximum, their exponentials, then
// the sum of values. Memory is reached through the view's load.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention.h"

namespace quire::kernels::internal {
namespace {

template <typename View>
void AttendRow(const AttentionParams& params, const View& keys, const View& values, std::uint32_t b,
               std::uint32_t i, std::vector<float>& p) {
  const std::uint32_t d = keys.head_size();
  const std::uint32_t group = params.num_heads / keys.num_heads();
  const std::uint32_t count = keys.cache_length(b) + i + 1;  // keys that this row sees
  const std::int64_t m = params.row_offsets[b] + i;
  for (std::uint32_t h = 0; h < params.num_heads; ++h) {
    const float* const q = params.q.f32() + m * params.q_stride + std::int64_t{h} * d;  // [d]
    float* const out = params.out.f32() + m * params.out_stride + std::int64_t{h} * d;  // [d]
    p.resize(count);
    for (std::uint32_t t = 0; t < count; ++t) {
      float score = 0;
      for (std::uint32_t c = 0; c < d; ++c) {
        score += q[c] * keys.template load<1, float>(b, h / group, t, c)[0];
      }
      p[t] = score * params.scale;
    }
    const float max = *std::max_element(p.begin(), p.end());
    float sum = 0;
    for (float& x : p) {
      x = std::exp(x - max);
      sum += x;
    }
    for (std::uint32_t c = 0; c < d; ++c) {
      float total = 0;
      for (std::uint32_t t = 0; t < count; ++t) {
        total += p[t] * values.template load<1, float>(b, h / group, t, c)[0];
      }
      out[c] = total / sum;
    }
  }
}

}  // namespace

void AttentionCpu(const AttentionParams& params) {
  std::visit(
      [&](const auto& keys) {
        using View = std::decay_t<decltype(keys)>;
        std::vector<float> p;
        for (std::uint32_t b = 0; b < params.batch_size; ++b) {
          for (std::uint32_t i = 0; i < params.row_offsets[b + 1] - params.row_offsets[b]; ++i) {
            AttendRow(params, keys, std::get<View>(*params.values), b, i, p);
          }
        }
      },
      *params.keys);
}

}  // namespace quire::kernels::internal
