// 4 bytes read and 2 (f32 pages: 4) written per element of K and V; less than 1 % of a layer.

#include <algorithm>
#include <cstddef>

#include "kernels/kv_store.h"

namespace quire::kernels::internal {
namespace {

template <typename T>
void StoreRow(const KvView<T>& view, std::uint32_t b, std::uint32_t t, const float* row) {
  if (view.page_id(b, t) == cache::kNullPage) return;
  const std::int64_t count = view.row_elements();
  T* const to = view.template block_paged_ptr<1>(b, t, 0);
  for (std::int64_t i = 0; i < count; ++i) to[i] = FromFloat<T>(row[i]);
}

template <typename View>
void StoreRows(const KvStoreParams& params, const View& keys, std::int64_t row_begin,
               std::int64_t row_end) {
  const View& values = std::get<View>(*params.values);
  for (std::uint32_t b = 0; b < params.batch_size; ++b) {
    const std::int64_t first = params.row_offsets[b];
    const std::int64_t begin = std::max(row_begin, first);
    const std::int64_t end = std::min<std::int64_t>(row_end, params.row_offsets[b + 1]);
    for (std::int64_t m = begin; m < end; ++m) {
      const std::uint32_t t = keys.cache_length(b) + static_cast<std::uint32_t>(m - first);
      StoreRow<typename View::Element>(keys, b, t, params.k + m * params.k_stride);
      StoreRow<typename View::Element>(values, b, t, params.v + m * params.v_stride);
    }
  }
}

}  // namespace

void KvStoreCpu(const KvStoreParams& params, std::int64_t row_begin, std::int64_t row_end) {
  std::visit(
      [&](const auto& keys) {
        using View = std::decay_t<decltype(keys)>;
        // CheckKvStep lets no quantised view through.
        if constexpr (!View::kQuantized) StoreRows(params, keys, row_begin, row_end);
      },
      *params.keys);
}

}  // namespace quire::kernels::internal
