#pragma once

// Selects the keys with the largest scores. CPU only.

#include <cstdint>

#include "absl/status/status.h"
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
};

// Row i selects the first min(topk, positions[i] + 1) keys in the total order: larger scores first,
// then lower keys. -0 equals +0. NaN precedes all numbers and equals NaN, so attention reads the
// row of such a key, whose NaN then reaches the logits. Writes the selected keys in ascending
// order, then -1. Returns INVALID_ARGUMENT on a GPU, for a negative position, if topk is 0, and if
// a row selects more than max_selected keys.
absl::Status SelectTopK(const Backend& backend, const SelectTopKParams& params);

namespace internal {

// Process rows [row_begin, row_end). SelectTopKCpu is the reference, which sorts.
void SelectTopKCpu(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);
void SelectTopKRadix(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end);

}  // namespace internal
}  // namespace quire::kernels
