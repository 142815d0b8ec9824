#pragma once

// Computes the inputs of StateScan that are derived from projections: normalized q and k, decays,
// rates.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct PrepareScanParams {
  float* q;            // [num_rows, key_heads, key_size], rows qk_stride apart; normalized in place
  float* k;            // as q
  const float* a;      // [num_rows, channels], rows rates_stride apart
  const float* b;      // [num_rows, heads], rows rates_stride apart; null: no delta
  const float* a_log;  // [heads]
  const float* dt_bias;  // [channels]
  float* decay;          // [num_rows, channels]
  float* rate;           // [num_rows, heads]
  std::int64_t qk_stride;
  std::int64_t rates_stride;
  std::uint32_t num_rows;
  std::uint32_t heads;
  std::uint32_t key_heads;
  std::uint32_t key_size;
  std::uint32_t channels;  // decays of a token: heads, or heads * key_size
  float qk_l2_eps = 0;     // if 0, q and k are not normalized
  float dt_min = 0;
  float dt_max = 0;
};

// Computes in f32, for each row and each channel c of head h:
//
//   q = q / sqrt(sum q^2 + qk_l2_eps) * key_size^-0.5, k = k / sqrt(sum k^2 + qk_l2_eps)
//   t = softplus(a + dt_bias)
//   with b:     decay = exp(-exp(a_log[h]) t), rate = sigmoid(b)
//   without b:  t is clamped to [dt_min, dt_max], decay = exp(-exp(a_log[h]) t), rate = t
//
// Squares are summed in 16 virtual lanes, as in RmsNorm, and on a GPU in 32 lanes. Returns
// INVALID_ARGUMENT if a stride is too small or `channels` is neither heads nor heads * key_size.
// Without b, only `channels` == heads is valid.
absl::Status PrepareScan(const Backend& backend, const PrepareScanParams& params);

namespace internal {

// Both process rows [row_begin, row_end). PrepareScanCpu is the reference, PrepareScanSimd the fast
// path.
void PrepareScanCpu(const PrepareScanParams& params, std::int64_t row_begin, std::int64_t row_end);
void PrepareScanSimd(const PrepareScanParams& params, std::int64_t row_begin, std::int64_t row_end);

absl::Status PrepareScanCuda(const CudaContext& context, const PrepareScanParams& params);

}  // namespace internal
}  // namespace quire::kernels
