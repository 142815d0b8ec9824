#pragma once

// Converts logical token positions, which a sparse attention indexer selects, to page * P + offset.
// get_tma_row converts the result to rows.

#include <cstdint>

#include "base/check.h"

namespace quire::cache {

struct SparseIndexRemapParams {
  const std::int32_t* logical;  // [num_queries, num_selected] token positions; negative: none
  const std::uint32_t*
      row_offsets;  // [batch_size + 1] first query token of each batch row, ascending
  const std::uint32_t* lookup_table;  // [batch_size, lookup_stride]; unassigned columns are 0
  std::int32_t* encoded;              // [num_queries, num_selected] result; may be `logical`
  std::uint32_t num_queries;
  std::uint32_t num_selected;
  std::uint32_t batch_size;
  std::uint32_t lookup_stride;
  std::uint32_t page_size;   // P
  std::uint32_t num_blocks;  // N, the null page included
};

// Sets encoded[i][k] = page * P + t mod P for t = logical[i][k], where `page` is the page of t in
// the batch row that contains query token i. A negative t is copied. The result is -1 if no batch
// row contains i, if t is past the table, or if the page is 0 or not below N. An encoded index
// cannot overflow: N * P <= num_kv_rows < 2^31.
inline void RemapSparseIndices(const SparseIndexRemapParams& params) {
  QUIRE_DCHECK(params.page_size > 0);
  std::uint32_t b = 0;
  for (std::uint32_t i = 0; i < params.num_queries; ++i) {
    while (b < params.batch_size && params.row_offsets[b + 1] <= i) ++b;
    const bool has_row = b < params.batch_size && params.row_offsets[b] <= i;
    const std::uint32_t* pages =
        has_row ? params.lookup_table + std::int64_t{b} * params.lookup_stride : nullptr;
    for (std::uint32_t k = 0; k < params.num_selected; ++k) {
      const std::int64_t at = std::int64_t{i} * params.num_selected + k;
      const std::int32_t t = params.logical[at];
      if (t < 0) {
        params.encoded[at] = t;
        continue;
      }
      const std::uint32_t column = static_cast<std::uint32_t>(t) / params.page_size;
      const std::uint32_t page = has_row && column < params.lookup_stride ? pages[column] : 0;
      params.encoded[at] =
          page == 0 || page >= params.num_blocks
              ? -1
              : static_cast<std::int32_t>(page * params.page_size +
                                          static_cast<std::uint32_t>(t) % params.page_size);
    }
  }
}

}  // namespace quire::cache
