#include <algorithm>
#include <cmath>

#include "kernels/sparse/index_score.h"

namespace quire::kernels::internal {
namespace {

template <typename View>
float ScoreKey(const IndexScoreParams& params, const View& keys, std::uint32_t b, std::uint32_t m,
               std::uint32_t t) {
  const std::uint32_t size = keys.head_size();
  const float* q = params.q + std::size_t{m} * params.num_heads * size;
  float score = 0;
  for (std::uint32_t h = 0; h < params.num_heads; ++h, q += size) {
    float dot = 0;
    for (std::uint32_t c = 0; c < size; ++c) {
      dot = std::fma(params.scale * q[c], keys.template load<1, float>(b, 0, t, c)[0], dot);
    }
    // The comparison keeps NaN.
    if (dot < 0) dot = 0;
    score = std::fma(params.weights[std::size_t{m} * params.num_heads + h], dot, score);
  }
  return score;
}

}  // namespace

void IndexScoreCpu(const IndexScoreParams& params) {
  std::visit(
      [&](const auto& keys) {
        for (std::uint32_t b = 0; b < params.batch_size; ++b) {
          const std::uint32_t first = params.row_offsets[b];
          const std::uint32_t end = std::min(params.row_offsets[b + 1], params.row_end);
          for (std::uint32_t m = std::max(first, params.row_begin); m < end; ++m) {
            float* const scores = params.scores + (m - params.row_begin) * params.score_stride;
            const std::uint32_t num_keys = keys.cache_length(b) + (m - first) + 1;
            for (std::uint32_t t = 0; t < num_keys; ++t) {
              scores[t] = ScoreKey(params, keys, b, m, t);
            }
          }
        }
      },
      *params.keys);
}

}  // namespace quire::kernels::internal
