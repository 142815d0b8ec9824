#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct SoftcapParams {
  float* x;  // [num_rows, columns], rows x_stride apart; changed in place
  std::int64_t x_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  float scale = 1;
  float cap = 0;  // 0: no cap
};

// Computes x = cap tanh(scale x / cap), or scale x without a cap, element by element in f32.
// Infinite and NaN values of scale x are kept, so that the sampler still detects a row with such
// values. Returns INVALID_ARGUMENT if the stride is less than columns or the cap is negative.
absl::Status Softcap(const Backend& backend, const SoftcapParams& params);

namespace internal {

absl::Status SoftcapCuda(const CudaContext& context, const SoftcapParams& params);
// Both process columns [begin, end) of all rows. SoftcapCpu is the reference, SoftcapSimd the fast
// path.
void SoftcapCpu(const SoftcapParams& params, std::int64_t begin, std::int64_t end);
void SoftcapSimd(const SoftcapParams& params, std::int64_t begin, std::int64_t end);

}  // namespace internal
}  // namespace quire::kernels
