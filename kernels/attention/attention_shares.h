#pragma once

// Computes how CPU attention is divided among threads and how much memory it needs.

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace quire::kernels::internal {

// Maximum memory for states that await reduction. The states of one row per sequence are allowed in
// addition, because they are small compared with the sequence's pages.
inline constexpr std::size_t kAttentionPartialBytes = std::size_t{64} << 20;

// The division of a step on the CPU.
struct AttentionShares {
  std::int64_t items = 0;
  std::int64_t reductions = 0;  // row blocks that are split by spans
  std::size_t bytes = 0;        // size of the lists and of states that await reduction
};
// REQUIRES: the parameters pass the checks of PagedAttention.
AttentionShares ShareAttention(const AttentionParams& params, int num_threads);

}  // namespace quire::kernels::internal
