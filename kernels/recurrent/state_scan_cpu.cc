// Reference implementation of the scan: computes the formula column by column.

#include <cstddef>
#include <vector>

#include "kernels/recurrent/state_scan.h"

namespace quire::kernels::internal {

void StateScanCpu(const StateScanParams& params, std::uint32_t row, std::uint32_t head,
                  std::uint32_t begin, std::uint32_t end) {
  const std::size_t dk = params.key_size, dv = params.value_size;
  const std::size_t key_head = params.key_head(head);
  const float* const before = params.rows.before(row);
  for (std::size_t column = begin; column < end; ++column) {
    std::vector<float> s(dk, 0.0f);
    const auto at = [&](std::size_t i) { return (head * dk + i) * dv + column; };
    for (std::size_t i = 0; before != nullptr && i < dk; ++i) s[i] = before[at(i)];
    const auto store = [&](float* state) {
      for (std::size_t i = 0; i < dk; ++i) state[at(i)] = s[i];
    };
    for (std::uint32_t t = 0; t < params.rows.tokens_of(row); ++t) {
      const std::size_t token = params.rows.row_offsets[row] + t;
      const std::size_t from = token * static_cast<std::size_t>(params.qkv_stride);
      const float* const q = params.q + from + key_head * dk;
      const float* const k = params.k + from + key_head * dk;
      const float v = params.v[from + head * dv + column];
      const std::size_t index = token * params.heads + head;
      float predicted = 0;
      for (std::size_t i = 0; i < dk; ++i) {
        s[i] *= params.decays_channels ? params.decay[index * dk + i] : params.decay[index];
        predicted += s[i] * k[i];
      }
      const float u = params.rate[index] * (params.delta ? v - predicted : v);
      float sum = 0;
      for (std::size_t i = 0; i < dk; ++i) {
        s[i] += k[i] * u;
        sum += s[i] * q[i];
      }
      if (params.skip != nullptr) sum += params.skip[head] * v;
      params.out[index * dv + column] = sum;
      if (t + 1 == params.rows.snapshot_tokens(row)) store(params.rows.snapshot(row));
    }
    store(params.rows.after(row));
  }
}

}  // namespace quire::kernels::internal
