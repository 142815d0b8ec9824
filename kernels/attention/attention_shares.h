#pragma once

// How attention on the CPU is shared out over threads, and what memory that takes.

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace quire::kernels::internal {

// Most memory for states that wait to be reduced, beside those of one row of each sequence, which
// are few beside what its tokens take in the pages.
inline constexpr std::size_t kAttentionPartialBytes = std::size_t{64} << 20;

// How a step is shared out on the CPU.
struct AttentionShares {
  std::int64_t items = 0;
  std::int64_t reduces = 0;  // blocks of rows that are cut along their spans
  std::size_t bytes = 0;     // of their lists and of the states that wait
};
// REQUIRES: what PagedAttention checks.
AttentionShares ShareAttention(const AttentionParams& params, int num_threads);

}  // namespace quire::kernels::internal
