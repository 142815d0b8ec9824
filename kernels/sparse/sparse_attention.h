#pragma once

// Attention over selected keys.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/kv_store/kv_dispatch.h"

namespace quire::kernels {

struct SelectedRowsParams {
  const AnyKvView* rows;   // K and V: the view of any layer of the layer group
  std::int32_t* selected;  // [num_rows, max_selected] keys, -1 after the last one
  // [num_rows] receives, for each row of `selected`, the column of its last key
  std::uint32_t* last_selected;
  // [num_rows + 1] receives 0, 1, 2, ... up to the number of rows that are not padding, and repeats
  // that number for padding rows
  std::uint32_t* offsets;
  const std::uint32_t* row_offsets;  // [batch_size + 1]: first row of each sequence, then the total
  std::uint32_t batch_size;
  std::uint32_t num_rows;
  std::uint32_t max_selected;
  // CUDA only. Both are null on the CPU.

  // [num_rows] the sequence of each row, below batch_size; -1: padding
  const std::int32_t* token_rows = nullptr;
  // [1 + num_rows] receives the number of rows that are not padding, then 0, 1, 2, ... REQUIRES:
  // padding rows are last.
  std::uint32_t* live_rows = nullptr;
};

// Replaces each selected key, a position in the sequence, by the index of its K/V row in the view
// (KvView::sparse_tma_row). The result is valid for all layers of the layer group. Keys without a
// page, and entries of -1, become 0: row 0 of the view contains zeros. For padding rows, `selected`
// and last_selected are not written. Returns errors of the launch. REQUIRES: every row that is not
// padding has at least one key.
absl::Status MapSelectedRows(const Backend& backend, const SelectedRowsParams& params);

struct SparseAttentionParams {
  const AnyKvView* rows;               // keys and values of one layer
  ConstFloatPtr q;                     // [num_rows, num_heads, head_size], rows q_stride apart
  FloatPtr out;                        // [num_rows, num_heads, head_size], rows out_stride apart
  const std::int32_t* selected;        // [num_rows, max_selected], written by MapSelectedRows
  const std::uint32_t* last_selected;  // [num_rows], written by MapSelectedRows
  const std::uint32_t* offsets;        // [num_rows + 1], written by MapSelectedRows
  std::int64_t q_stride;
  std::int64_t out_stride;
  std::uint32_t num_rows;
  std::uint32_t max_selected;
  std::uint32_t num_heads;
  float scale;
  std::uint32_t value_columns;  // AttentionParams::value_columns
  // CUDA only. Both are null on the CPU.
  const std::uint32_t* live_rows = nullptr;  // as MapSelectedRows returns
  // a plan that was created for these heads (AttentionPlanLimits); only its memory is used
  const AttentionPlan* plan = nullptr;
};

// Computes PagedAttention of each row over its selected keys only, in the order of `selected`. On
// the CPU the tiles have 64 keys, as in PagedAttention. A row that selects all of its keys
// therefore gets a bit-identical result. A GPU runs the portable MLA kernel, or the scalar kernel
// for pages that the MLA kernel does not support. Returns the errors of PagedAttention.
absl::Status SparseAttention(const Backend& backend, const SparseAttentionParams& params);

namespace internal {

absl::Status MapSelectedRowsCuda(const CudaContext& context, const SelectedRowsParams& params);

}  // namespace internal
}  // namespace quire::kernels
