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
  // CUDA only: [num_rows] sequence of each row; -1: padding, for which nothing is written.
  const std::int32_t* token_rows = nullptr;
};

// Row i selects the first min(topk, positions[i] + 1) keys in this total order: larger scores
// first, for equal scores lower keys first. -0 equals +0. NaN precedes all numbers and equals NaN.
// A key with a NaN score is therefore selected, and attention propagates the NaN to the logits.
// Writes the selected keys in ascending order, then -1. Returns INVALID_ARGUMENT if topk is 0, and
// on the CPU for a negative position or a row that selects more than max_selected keys. A GPU does
// not check positions.
absl::Status SelectTopK(const Backend& backend, const SelectTopKParams& params);

namespace internal {

// Maps the bits of a score to an integer. Scores with larger integers are selected first.
QUIRE_HOST_DEVICE constexpr std::uint32_t OrderedScoreBits(std::uint32_t bits) {
  constexpr std::uint32_t kSign = 0x80000000u;
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  const std::uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinity) return 0xffffffffu;  // NaN
  if (magnitude == 0) return kSign;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// Both process rows [row_begin, row_end). SelectTopKCpu is the reference, which sorts.
void SelectTopKCpu(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);
void SelectTopKRadix(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);

absl::Status SelectTopKCuda(const CudaContext& context, const SelectTopKParams& params);

}  // namespace internal
}  // namespace quire::kernels
