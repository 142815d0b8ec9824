#include "kernels/sparse/sparse_attention.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "cache_manager/views/sparse_index_remap.h"
#include "kernels/attention/attention.h"

namespace quire::kernels {
namespace {

// Maps the selected keys of row m, which belongs to sequence b.
template <typename View>
void MapRow(const SelectedRowsParams& params, const View& view, std::uint32_t b, std::uint32_t m) {
  constexpr std::uint32_t kOffsets[] = {0, 1};
  std::int32_t* const selected = params.selected + std::int64_t{m} * params.max_selected;
  std::int32_t* const end = selected + params.max_selected;
  const auto count = std::find(selected, end, -1) - selected;
  QUIRE_DCHECK(count > 0);
  params.last_selected[m] = static_cast<std::uint32_t>(count - 1);
  cache::RemapSparseIndices(
      {.logical = selected,
       .row_offsets = kOffsets,
       .lookup_table = view.lookup_table + std::int64_t{b} * view.lookup_stride,
       .encoded = selected,
       .num_queries = 1,
       .num_selected = params.max_selected,
       .batch_size = 1,
       .lookup_stride = view.lookup_stride,
       .page_size = view.page_size(),
       .num_blocks = view.num_blocks});
  std::transform(selected, end, selected, [&](std::int32_t encoded) {
    return std::max(view.get_tma_row(encoded), std::int32_t{0});
  });
}

}  // namespace

absl::Status MapSelectedRows(const Backend& backend, const SelectedRowsParams& params) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::MapSelectedRowsCuda(*backend.cuda(), params);
  }
  std::iota(params.offsets, params.offsets + params.num_rows + 1, 0u);
  const auto map = [&](const auto& view) {
    backend.ParallelFor(params.num_rows, params.max_selected * 2.0,
                        [&](std::int64_t begin, std::int64_t end, int) {
                          std::uint32_t b = 0;
                          for (auto m = static_cast<std::uint32_t>(begin); m < end; ++m) {
                            while (params.row_offsets[b + 1] <= m) ++b;
                            MapRow(params, view, b, m);
                          }
                        });
  };
  std::visit(map, *params.rows);
  return absl::OkStatus();
}

absl::Status SparseAttention(const Backend& backend, const SparseAttentionParams& params) {
  // Each row becomes a separate sequence over pages of one token. The row's selected keys, which
  // MapSelectedRows replaced by rows of the view, are the lookup table of this sequence.
  AnyKvView gathered = *params.rows;
  std::visit(
      [&](auto& view) {
        view.num_blocks = static_cast<std::uint32_t>(view.num_kv_rows());
        view.lookup_table = reinterpret_cast<const std::uint32_t*>(params.selected);
        view.lookup_stride = params.max_selected;
        // Attention with cache length n reads n + 1 keys.
        view.cache_lengths = params.last_selected;
        view.batch_size = params.num_rows;
        view.rows_per_page = 1;
        view.page = decltype(view.page)::FromSize(1);
        if constexpr (std::decay_t<decltype(view)>::kQuantized) {
          QUIRE_DCHECK(view.scales_lookup_table == nullptr);
          view.scale_rows_per_page = 1;
          view.num_scale_blocks = view.num_blocks;
        }
      },
      gathered);
  return PagedAttention(backend, {.keys = &gathered,
                                  .values = &gathered,
                                  .q = params.q,
                                  .out = params.out,
                                  .row_offsets = params.offsets,
                                  .q_stride = params.q_stride,
                                  .out_stride = params.out_stride,
                                  .batch_size = params.num_rows,
                                  .num_heads = params.num_heads,
                                  .scale = params.scale,
                                  .plan = params.plan,
                                  .live_sequences = params.live_rows,
                                  .value_columns = params.value_columns});
}

}  // namespace quire::kernels
