#pragma once

// What changes from step to step, shared unchanged by all layers of one group.

#include <cstdint>

namespace quire::cache {

// One per layer group. The arrays lie at addresses that are fixed for the life of the process; the
// cache manager owns them. The continuous cache reads lookup_table as [max_rows], one block per
// row, with lookup_stride 1.
struct KvStepInputs {
  // [max_rows, lookup_stride] page ids; unassigned columns and free rows are 0, and so are the
  // columns in front that no query of a window group reads.
  const std::uint32_t* lookup_table = nullptr;
  // [max_rows] tokens cached before this step; new token i of row b goes to cache_lengths[b] + i.
  const std::uint32_t* cache_lengths = nullptr;
  // roundup(max_pages, 8) + 16: rows are 32-byte aligned, and 16 entries may be read from any valid
  // column on.
  std::uint32_t lookup_stride = 0;
  std::uint32_t max_rows = 0;
  std::uint32_t max_seq_length = 0;  // most new tokens of any scheduled row
  std::uint32_t max_cache_length =
      0;  // upper bound of keys over scheduled rows, this step's included
  std::uint32_t max_history_length = 0;  // exact maximum of cache_lengths over scheduled rows
};

}  // namespace quire::cache
