#include "kernels/sparse/select_topk.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace quire::kernels {
namespace {

std::uint32_t OrderedBits(float score) {
  return internal::OrderedScoreBits(std::bit_cast<std::uint32_t>(score));
}

// The threshold of a selection: all keys with ordered bits above `bits` are selected, and the first
// `equal` keys with exactly these bits.
struct Threshold {
  std::uint32_t bits;
  std::uint32_t equal;
};

// Finds the threshold in four passes of 8 bits each. REQUIRES: topk <= num_keys.
Threshold FindThreshold(const float* scores, std::uint32_t num_keys, std::uint32_t topk) {
  std::uint32_t bits = 0;
  std::uint32_t known = 0;  // mask of the bits that are already known
  std::uint32_t left = topk;
  for (int shift = 24; shift >= 0; shift -= 8) {
    std::uint32_t counts[256] = {};
    for (std::uint32_t j = 0; j < num_keys; ++j) {
      const std::uint32_t key = OrderedBits(scores[j]);
      if ((key & known) == bits) ++counts[(key >> shift) & 255];
    }
    std::uint32_t digit = 255;
    while (counts[digit] < left) left -= counts[digit--];
    bits |= digit << shift;
    known |= 255u << shift;
  }
  return {bits, left};
}

}  // namespace

namespace internal {

void SelectTopKRadix(const SelectTopKParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float* const scores = params.scores + row * params.score_stride;
    const auto num_keys = static_cast<std::uint32_t>(params.positions[row]) + 1;
    std::int32_t* to = params.selected + row * params.max_selected;
    std::int32_t* const end = to + params.max_selected;
    if (num_keys <= params.topk) {
      std::iota(to, to + num_keys, 0);
      std::fill(to + num_keys, end, -1);
      continue;
    }
    auto [bits, equal] = FindThreshold(scores, num_keys, params.topk);
    for (std::uint32_t j = 0; j < num_keys; ++j) {
      const std::uint32_t key = OrderedBits(scores[j]);
      if (key < bits || (key == bits && equal == 0)) continue;
      if (key == bits) --equal;
      *to++ = static_cast<std::int32_t>(j);
    }
    std::fill(to, end, -1);
  }
}

}  // namespace internal

absl::Status SelectTopK(const Backend& backend, const SelectTopKParams& params) {
  if (params.topk == 0) {
    return absl::InvalidArgumentError("SelectTopK has topk 0, it must be at least 1");
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SelectTopKCuda(*backend.cuda(), params);
  }
  std::int64_t total = 0;
  for (std::uint32_t i = 0; i < params.num_rows; ++i) {
    const std::int64_t num_keys = std::int64_t{params.positions[i]} + 1;
    if (num_keys < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "position of row ", i, " is ", params.positions[i], ", it must be at least 0"));
    }
    const std::int64_t num_selected = std::min<std::int64_t>(num_keys, params.topk);
    if (num_selected > params.max_selected) {
      return absl::InvalidArgumentError(absl::StrCat("max_selected is ", params.max_selected,
                                                     ", it must be at least ", num_selected,
                                                     ", the keys that row ", i, " selects"));
    }
    total += num_keys;
  }
  if (params.num_rows == 0) return absl::OkStatus();
  backend.ParallelFor(params.num_rows, 5.0 * static_cast<double>(total) / params.num_rows,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::SelectTopKRadix(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
