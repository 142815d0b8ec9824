// Maps selected keys to rows of the pages: one block per row. The result depends only on the lookup
// table, so one kernel serves pages of all element types.

#include <cstdint>
#include <variant>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/sparse/sparse_attention.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;

struct MapArgs {
  KvView<float> table;  // without elements
  std::int32_t* selected;
  std::uint32_t* last_selected;
  std::uint32_t* offsets;
  std::uint32_t* live_rows;
  const std::uint32_t* row_offsets;
  const std::int32_t* token_rows;
  std::uint32_t batch_size;
  std::uint32_t max_selected;
};

__global__ void __launch_bounds__(kThreads)
    MapSelectedRowsKernel(const __grid_constant__ MapArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t row = cuda::BlockX();
  const std::uint32_t total = args.row_offsets[args.batch_size];
  if (cuda::ThreadIndex() == 0) {
    // Padding rows are after all other rows and are empty sequences.
    args.offsets[row] = row < total ? row : total;
    args.live_rows[1 + row] = row;
    if (row + 1 == cuda::GridX()) {
      args.offsets[row + 1] = total;
      args.live_rows[0] = total;
    }
  }
  const std::int32_t batch_row = args.token_rows[row];
  if (batch_row < 0) return;
  std::int32_t* const selected = args.selected + std::int64_t{row} * args.max_selected;
  for (std::uint32_t i = cuda::ThreadIndex(); i < args.max_selected; i += kThreads) {
    const bool is_last = i + 1 == args.max_selected || selected[i + 1] < 0;
    if (selected[i] >= 0 && is_last) args.last_selected[row] = i;
  }
  cuda::SyncBlock();
  for (std::uint32_t i = cuda::ThreadIndex(); i < args.max_selected; i += kThreads) {
    const std::int32_t mapped =
        args.table.sparse_tma_row(static_cast<std::uint32_t>(batch_row), selected[i]);
    selected[i] = mapped < 0 ? 0 : mapped;
  }
}

}  // namespace

namespace internal {

absl::Status MapSelectedRowsCuda(const CudaContext& context, const SelectedRowsParams& params) {
  KvView<float> table;
  std::visit(
      [&](const auto& rows) {
        table.lookup_table = rows.lookup_table;
        table.lookup_stride = rows.lookup_stride;
        table.rows_per_page = rows.rows_per_page;
        table.batch_size = rows.batch_size;
        table.num_blocks = rows.num_blocks;
        table.page = rows.page;
      },
      *params.rows);
  return cuda::Launch(
      context, "map_selected_rows", MapSelectedRowsKernel,
      {.blocks_x = params.num_rows, .threads = kThreads, .programmatic = true},
      MapArgs{table, params.selected, params.last_selected, params.offsets, params.live_rows,
              params.row_offsets, params.token_rows, params.batch_size, params.max_selected});
}

}  // namespace internal
}  // namespace quire::kernels
