#pragma once

// Attention over selected keys. CPU only.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct SelectedRowsParams {
  const AnyKvView* rows;             // the view of any layer of the layer group
  std::int32_t* selected;            // [num_rows, max_selected] keys, -1 behind the last one
  std::uint32_t* num_others;         // [num_rows] receives the number of selected keys minus 1
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::uint32_t batch_size;
  std::uint32_t max_selected;
};

// Replaces the keys of each row by rows of the view (RemapSparseIndices and get_tma_row). All
// layers of a layer group have the same rows. A key without a page, and -1, becomes row 0, which is
// zero.
// REQUIRES: every row has at least one key; the backend is the CPU.
void MapSelectedRows(const Backend& backend, const SelectedRowsParams& params);

struct SparseAttentionParams {
  const AnyKvView* rows;            // keys and values of one layer
  ConstFloatPtr q;                  // [num_rows, num_heads, head_size], rows q_stride apart
  FloatPtr out;                     // [num_rows, num_heads, head_size], rows out_stride apart
  const std::int32_t* selected;     // [num_rows, max_selected] as MapSelectedRows returns
  const std::uint32_t* num_others;  // likewise
  const std::uint32_t* offsets;     // [num_rows + 1]: 0, 1, 2, ...
  std::int64_t q_stride;
  std::int64_t out_stride;
  std::uint32_t num_rows;
  std::uint32_t max_selected;
  std::uint32_t num_heads;
  float scale;
  std::uint32_t value_columns;  // AttentionParams::value_columns
};

// PagedAttention of each row over its selected keys alone, in their order. Tiles consist of 64
// selected keys, so a row that selects all of its keys gets the bits of PagedAttention. Returns the
// errors of PagedAttention, and INVALID_ARGUMENT on a GPU.
absl::Status SparseAttention(const Backend& backend, const SparseAttentionParams& params);

}  // namespace quire::kernels
