#pragma once

// The inputs of attention kernels that change from step to step. All layers of one group share
// them.

#include <cstdint>

namespace quire::cache {

// The step inputs of one layer group. The cache manager owns the arrays, whose addresses are fixed
// for the life of the process. ContinuousBatchingKVCache reads lookup_table as [max_rows], one
// block per row, with lookup_stride 1.
struct KvStepInputs {
  // [max_rows, lookup_stride] page ids. Unassigned columns, free rows, and the leading columns that
  // no query of a window group reads are 0.
  const std::uint32_t* lookup_table = nullptr;
  // [max_rows] tokens cached before this step; new token i of row b has position
  // cache_lengths[b] + i.
  const std::uint32_t* cache_lengths = nullptr;
  // roundup(max_pages, 8) + 16, so that rows are 32-byte aligned and 16 entries may be read from
  // any valid column on.
  std::uint32_t lookup_stride = 0;
  std::uint32_t max_rows = 0;
  std::uint32_t max_seq_length = 0;  // maximum number of new tokens of a scheduled row
  // Upper bound of the number of keys of a scheduled row, including this step's tokens.
  std::uint32_t max_cache_length = 0;
  std::uint32_t max_history_length = 0;  // exact maximum of cache_lengths over scheduled rows
};

}  // namespace quire::cache
