#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "kernels/attention/attention_mask.h"
#include "kernels/attention/bf16_attention.h"
#include "kernels/backend/exact_gate.h"
#include "kernels/linear/bf16_linear.h"

namespace quire::kernels::internal {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kNoMaximum = -std::numeric_limits<float>::infinity();
constexpr std::uint32_t kParts = 16;

float Rounded(float x) {
  return BF16::FromFloat(x).ToFloat();
}

// Computes Exp2 of attention_tile-inl.h for one float.
float Exp2(float x) {
  if (std::isnan(x)) return x;
  const float clamped = x < -127.0f ? -127.0f : x;
  const float n = std::nearbyint(clamped);
  const float r = clamped - n;
  float p = 1.54531634e-4f;
  for (const float c :
       {1.33908633e-3f, 9.61808302e-3f, 5.55035695e-2f, 2.40226507e-1f, 6.93147182e-1f, 1.0f}) {
    p = std::fma(p, r, c);
  }
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

// The softmax state of a row over some tokens.
struct State {
  explicit State(std::size_t columns) : values(columns) {}
  bool is_empty() const {
    return max == kNoMaximum &&
           std::all_of(parts.begin(), parts.end(), [](float part) { return part == 0.0f; });
  }

  float max = kNoMaximum;
  std::array<float, kParts> parts = {};
  std::vector<float> values;
};

void Reduce(State* reduced, const State& span) {
  if (span.is_empty()) return;
  if (reduced->is_empty()) {
    *reduced = span;
    return;
  }
  const float max = std::max(reduced->max, span.max);
  const float left = Exp2(reduced->max - max);
  const float right = Exp2(span.max - max);
  const auto join = [&](float& a, float b) {
    const float scaled = a * left;
    a = std::fma(b, right, scaled);
  };
  for (std::size_t c = 0; c < span.values.size(); ++c) join(reduced->values[c], span.values[c]);
  for (std::size_t i = 0; i < kParts; ++i) join(reduced->parts[i], span.parts[i]);
  reduced->max = max;
}

// Returns the sum of a * b over i in [begin, end), where at(i) returns (a, b). Sums in blocks of 32
// at multiples of 32.
template <typename At>
float SumProducts(std::uint32_t begin, std::uint32_t end, At&& at) {
  float total = 0;
  for (std::uint32_t block = begin / 32 * 32; block < end; block += 32) {
    float sums[2] = {};  // even and odd
    for (std::uint32_t i = std::max(block, begin); i < std::min(block + 32, end); ++i) {
      const auto [a, b] = at(i);
      sums[i % 2] = FlushedFma(a, b, sums[i % 2]);
    }
    total = FlushedAdd(total, FlushedAdd(sums[0], sums[1]));
  }
  return total;
}

// Computes the output of one query head of a row.
class Query {
 public:
  Query(const AttentionParams& params, std::uint32_t b, std::uint32_t i, std::uint32_t h)
      : params_(params),
        keys_(std::get<KvView<BF16>>(*params.keys)),
        values_(std::get<KvView<BF16>>(*params.values)),
        b_(b),
        h_(h),
        kv_head_(h / (params.num_heads / keys_.num_heads())),
        end_(keys_.cache_length(b) + i + 1),
        begin_(FirstVisible(end_ - 1, params.window, params.chunk)),
        row_(std::int64_t{params.row_offsets[b]} + i) {
    const float factor = params.scale * kLog2E;
    const float* const q = params.q.f32() + Offset(params.q_stride);
    for (std::uint32_t c = 0; c < keys_.head_size(); ++c) q_.push_back(Rounded(q[c] * factor));
  }

  void WriteOutput() const {
    State state(q_.size());
    for (std::uint32_t t = begin_ / kAttentionSpan * kAttentionSpan; t < end_;
         t += kAttentionSpan) {
      Reduce(&state, Span(std::max(t, begin_), std::min(t + kAttentionSpan, end_)));
    }
    const float inverse = InverseSum(state);
    float* const out = params_.out.f32() + Offset(params_.out_stride);
    for (std::size_t c = 0; c < q_.size(); ++c) out[c] = state.values[c] * inverse;
  }

 private:
  std::int64_t Offset(std::int64_t stride) const {
    return row_ * stride + std::int64_t{h_} * keys_.head_size();
  }

  float Score(std::uint32_t t) const {
    const float score = SumProducts(0, keys_.head_size(), [&](std::uint32_t c) {
      return std::pair(q_[c], keys_.load<1, float>(b_, kv_head_, t, c)[0]);
    });
    if (params_.softcap == 0) return score;
    const float cap = params_.softcap * kLog2E;
    return cap * ExactTanh(score / cap);
  }

  // Returns the state over the tokens [begin, end), which are in one span.
  State Span(std::uint32_t begin, std::uint32_t end) const {
    State state(q_.size());
    std::vector<float> p;
    for (std::uint32_t t = begin; t < end; ++t) p.push_back(Score(t));
    state.max = *std::max_element(p.begin(), p.end());
    for (std::uint32_t t = begin; t < end; ++t) {
      float& weight = p[t - begin];
      weight = Rounded(Exp2(weight - state.max));
      state.parts[t % kParts] += weight;
    }
    for (std::uint32_t c = 0; c < q_.size(); ++c) {
      const float value = SumProducts(begin, end, [&](std::uint32_t t) {
        return std::pair(p[t - begin], values_.load<1, float>(b_, kv_head_, t, c)[0]);
      });
      state.values[c] = value + 0.0f;
    }
    return state;
  }

  float InverseSum(const State& state) const {
    std::array<float, kParts> s = state.parts;
    for (const std::size_t distance : {8u, 4u, 2u, 1u}) {
      for (std::size_t i = 0; i < distance; ++i) s[i] += s[i + distance];
    }
    if (params_.sinks == nullptr) return 1.0f / s[0];
    const float sink = params_.sinks[h_] * kLog2E;
    if (sink <= state.max) return 1.0f / (s[0] + Exp2(sink - state.max));
    const float left = Exp2(state.max - sink);
    return left / (s[0] * left + 1.0f);
  }

  const AttentionParams& params_;
  const KvView<BF16>& keys_;
  const KvView<BF16>& values_;
  const std::uint32_t b_;
  const std::uint32_t h_;
  const std::uint32_t kv_head_;
  const std::uint32_t end_;    // end of the tokens that the row sees
  const std::uint32_t begin_;  // first token that the row sees
  const std::int64_t row_;     // row in the step
  std::vector<float> q_;
};

}  // namespace

void AttentionBf16Cpu(const AttentionParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::uint32_t b = 0; b < params.batch_size; ++b) {
    const std::int64_t first = params.row_offsets[b];
    const std::int64_t begin = std::max(row_begin, first);
    const std::int64_t end = std::min<std::int64_t>(row_end, params.row_offsets[b + 1]);
    for (std::int64_t m = begin; m < end; ++m) {
      for (std::uint32_t h = 0; h < params.num_heads; ++h) {
        Query(params, b, static_cast<std::uint32_t>(m - first), h).WriteOutput();
      }
    }
  }
}

}  // namespace quire::kernels::internal
