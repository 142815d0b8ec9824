#pragma once

// Random sequences for CPU attention tests: the exact result in double, and one step of the op over
// a paged pool.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/kv_store/kv_store.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels {

struct AttentionCase {
  DType dtype;
  std::uint32_t heads;
  std::uint32_t kv_heads;
  std::uint32_t head_size;
  std::uint32_t page_size;
  int threads;
};

// Score rules of a row.
struct AttentionMask {
  std::uint32_t window = 0;
  float softcap = 0;
  std::vector<float> sinks;  // [heads], or empty
  std::uint32_t chunk = 0;
};

// Random K, V and Q of whole sequences. Rows of q are indexed by (sequence, position).
struct Sequences {
  Sequences(const AttentionCase& c, std::vector<std::uint32_t> token_counts, std::uint32_t seed)
      : shape(c), lengths(std::move(token_counts)) {
    const std::uint32_t total = std::accumulate(lengths.begin(), lengths.end(), 0u);
    k = RandomFloats(std::size_t{total} * kv_columns(), seed);
    v = RandomFloats(std::size_t{total} * kv_columns(), seed + 1);
    q = RandomFloats(std::size_t{total} * q_columns(), seed + 2);
    stored_k = AsStored(k, c.dtype, c.head_size);
    stored_v = AsStored(v, c.dtype, c.head_size);
  }
  std::uint32_t kv_columns() const { return shape.kv_heads * shape.head_size; }
  std::uint32_t q_columns() const { return shape.heads * shape.head_size; }
  std::size_t token(std::uint32_t b, std::uint32_t t) const {
    return std::accumulate(lengths.begin(), lengths.begin() + b, std::size_t{t});
  }

  AttentionCase shape;
  std::vector<std::uint32_t> lengths;
  std::vector<float> k, v, q;
  std::vector<float> stored_k, stored_v;  // as the pages represent them
  AttentionMask mask = {};
};

// Two-pass softmax in double from the stored values. The rules are written out. With a window the
// row sees the token itself and the window - 1 tokens before it. With a chunk the row sees the
// tokens back to the last multiple of the chunk.
inline std::vector<double> ExactRow(const Sequences& s, std::uint32_t b, std::uint32_t position,
                                    float scale) {
  const AttentionCase& c = s.shape;
  const auto last = static_cast<std::int64_t>(position);
  std::int64_t first = s.mask.window == 0 ? 0 : std::max<std::int64_t>(0, last + 1 - s.mask.window);
  if (s.mask.chunk != 0) {
    first = last;
    while (first % s.mask.chunk != 0) --first;
  }
  std::vector<double> out;
  for (std::uint32_t h = 0; h < c.heads; ++h) {
    const std::size_t kv = h / (c.heads / c.kv_heads) * c.head_size;
    std::vector<double> p;
    for (auto t = static_cast<std::uint32_t>(first); t <= position; ++t) {
      double score = 0;
      for (std::uint32_t d = 0; d < c.head_size; ++d) {
        score += double{s.q[s.token(b, position) * s.q_columns() + h * c.head_size + d]} *
                 s.stored_k[s.token(b, t) * s.kv_columns() + kv + d];
      }
      score *= scale;
      if (s.mask.softcap > 0) score = s.mask.softcap * std::tanh(score / s.mask.softcap);
      p.push_back(score);
    }
    double max = *std::max_element(p.begin(), p.end());
    if (!s.mask.sinks.empty()) max = std::max(max, double{s.mask.sinks[h]});
    double sum = s.mask.sinks.empty() ? 0 : std::exp(s.mask.sinks[h] - max);
    for (double& x : p) sum += x = std::exp(x - max);
    for (std::uint32_t d = 0; d < c.head_size; ++d) {
      double total = 0;
      for (std::size_t i = 0; i < p.size(); ++i) {
        const std::size_t token = s.token(b, static_cast<std::uint32_t>(first)) + i;
        total += p[i] * s.stored_v[token * s.kv_columns() + kv + d];
      }
      out.push_back(total / sum);
    }
  }
  return out;
}

// Tokens before cached[b] are in the pages. Stores and attends rows cached[b] .. + fresh[b] in one
// step, with attend(params). Returns the packed output rows.
template <typename Attend>
std::vector<float> RunStepWith(const Backend& backend, TestPool& pool, const Sequences& s,
                               const std::vector<std::uint32_t>& cached,
                               const std::vector<std::uint32_t>& fresh, const Attend& attend) {
  pool.SetStep(cached, fresh);
  std::vector<float> q, k, v;
  for (std::uint32_t b = 0; b < cached.size(); ++b) {
    const std::size_t from = s.token(b, cached[b]);
    const std::size_t to = from + fresh[b];
    q.insert(q.end(), s.q.data() + from * s.q_columns(), s.q.data() + to * s.q_columns());
    k.insert(k.end(), s.k.data() + from * s.kv_columns(), s.k.data() + to * s.kv_columns());
    v.insert(v.end(), s.v.data() + from * s.kv_columns(), s.v.data() + to * s.kv_columns());
  }
  const AnyKvView keys = pool.keys();
  const AnyKvView values = pool.values();
  EXPECT_TRUE(KvStore(backend, {&keys, &values, k.data(), v.data(), pool.row_offsets(),
                                s.kv_columns(), s.kv_columns(), pool.batch_size()})
                  .ok());
  GuardedRows out(pool.num_rows(), s.q_columns());
  const AttentionParams params{.keys = &keys,
                               .values = &values,
                               .q = q.data(),
                               .out = out.data(),
                               .row_offsets = pool.row_offsets(),
                               .q_stride = s.q_columns(),
                               .out_stride = out.stride(),
                               .batch_size = pool.batch_size(),
                               .num_heads = s.shape.heads,
                               .scale = 1.0f / std::sqrt(static_cast<float>(s.shape.head_size)),
                               .window = s.mask.window,
                               .chunk = s.mask.chunk,
                               .softcap = s.mask.softcap,
                               .sinks = s.mask.sinks.empty() ? nullptr : s.mask.sinks.data()};
  attend(params);
  EXPECT_TRUE(out.GuardsIntact());
  return out.Packed();
}

// RunStepWith PagedAttention or, if not `fast`, its f32 reference.
inline std::vector<float> RunStep(const Backend& backend, TestPool& pool, const Sequences& s,
                                  const std::vector<std::uint32_t>& cached,
                                  const std::vector<std::uint32_t>& fresh, bool fast = true) {
  return RunStepWith(backend, pool, s, cached, fresh, [&](const AttentionParams& params) {
    if (!fast) return internal::AttentionCpu(params);
    const absl::Status status = PagedAttention(backend, params);
    EXPECT_TRUE(status.ok()) << status;
  });
}

inline TestPool MakePool(const Sequences& s, std::uint32_t seed) {
  const AttentionCase& c = s.shape;
  return TestPool({c.dtype, 1, c.kv_heads, c.head_size, c.page_size},
                  std::vector<std::uint32_t>(s.lengths.size(), 0), s.lengths, seed);
}

}  // namespace quire::kernels
