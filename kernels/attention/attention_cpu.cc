// Reference implementation of attention. For each row and head it computes all scores, their
// maximum, their exponentials, and the weighted sum of values. Elements are read with KvView::load.

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mask.h"

namespace quire::kernels::internal {
namespace {

// Computes the weights of `count` keys for query q, which is at the position of the last key. Keys
// before the first visible one have weight 0. Returns the sum of the weights, including the sink of
// head h.
template <typename View>
float Weigh(const AttentionParams& params, const View& keys, std::uint32_t b, std::uint32_t h,
            const float* q, std::uint32_t count, std::vector<float>& p) {
  const std::uint32_t kv_head = h / (params.num_heads / keys.num_heads());
  const std::uint32_t first = FirstVisible(count - 1, params.window, params.chunk);
  p.assign(count, 0.0f);
  float max = params.sinks == nullptr ? -std::numeric_limits<float>::infinity() : params.sinks[h];
  for (std::uint32_t t = first; t < count; ++t) {
    float score = 0;
    for (std::uint32_t c = 0; c < keys.head_size(); ++c) {
      score += q[c] * keys.template load<1, float>(b, kv_head, t, c)[0];
    }
    score *= params.scale;
    if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
    p[t] = score;
    max = std::max(max, score);
  }
  float sum = params.sinks == nullptr ? 0.0f : std::exp(params.sinks[h] - max);
  for (std::uint32_t t = first; t < count; ++t) {
    p[t] = std::exp(p[t] - max);
    sum += p[t];
  }
  return sum;
}

template <typename View>
void AttendRow(const AttentionParams& params, const View& keys, const View& values, std::uint32_t b,
               std::uint32_t i, std::vector<float>& p) {
  const std::uint32_t d = keys.head_size();
  const std::uint32_t group = params.num_heads / keys.num_heads();
  const std::uint32_t count = keys.cache_length(b) + i + 1;  // keys including this row's own
  const std::uint32_t first = FirstVisible(count - 1, params.window, params.chunk);
  const std::int64_t m = params.row_offsets[b] + i;
  for (std::uint32_t h = 0; h < params.num_heads; ++h) {
    const float* const q = params.q.f32() + m * params.q_stride + std::int64_t{h} * d;  // [d]
    float* const out = params.out.f32() + m * params.out_stride + std::int64_t{h} * d;  // [d]
    const float sum = Weigh(params, keys, b, h, q, count, p);
    for (std::uint32_t c = 0; c < d; ++c) {
      float total = 0;
      for (std::uint32_t t = first; t < count; ++t) {
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
