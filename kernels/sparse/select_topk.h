#pragma once

// Selects the keys with the largest scores.

#include <cstdint>

#include "absl/status/status.h"
#include "base/host_device.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct SelectTopKParams {
  const float* scores;            // [num_rows, score_stride]
  const std::int32_t* positions;  // [num_rows]: row i has scores of the keys 0 .. positions[i]
  std::int32_t* selected;         // [num_rows, max_selected]
  std::int64_t score_stride;
  std::uint32_t num_rows;
  std::uint32_t topk;
  std::uint32_t max_selected;
  // CUDA only: [num_rows] batch row of each row; -1: padding, for which nothing is written.
  const std::int32_t* token_rows = nullptr;
};

// Row i selects the first min(topk, positions[i] + 1) keys in the total order: larger scores first,
// then lower keys. -0 equals +0. NaN precedes all numbers and equals NaN, so attention reads the
// row of such a key, whose NaN then reaches the logits. Writes the selected keys in ascending
// order, then -1. Returns INVALID_ARGUMENT if topk is 0. CPU: also for a negative position, and if
// a row selects more than max_selected keys. A GPU does not check positions.
absl::Status SelectTopK(const Backend& backend, const SelectTopKParams& params);

namespace internal {

// Returns an integer with the order of SelectTopK, from the bits of a score: larger ones are
// selected first.
QUIRE_HOST_DEVICE constexpr std::uint32_t OrderedScoreBits(std::uint32_t bits) {
  constexpr std::uint32_t kSign = 0x80000000u;
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  const std::uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return 0xffffffffu;  // NaN
  if (magnitude == 0) return kSign;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// Process rows [row_begin, row_end). SelectTopKCpu is the reference, which sorts.
void SelectTopKCpu(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);
void SelectTopKRadix(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);

absl::Status SelectTopKCuda(const CudaContext& context, const SelectTopKParams& params);

}  // namespace internal
}  // namespace quire::kernels
