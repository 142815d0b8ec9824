#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/kv_store/kv_store.h"

namespace quire::kernels::internal {
namespace {

template <typename T>
void StoreRow(const KvView<T>& view, std::uint32_t b, std::uint32_t t, const float* row) {
  if (view.page_id(b, t) == cache::kNullPage) return;
  const auto count = static_cast<std::size_t>(view.row_elements());
  T* const to = view.template block_paged_ptr<1>(b, t, 0);
  if constexpr (kQuantizedKv<T>) {
    float* const scales = view.scales_block_paged_ptr(b, t, 0);
    const std::size_t columns = view.head_size();
    for (std::uint32_t h = 0; h < view.num_heads(); ++h) {
      scales[h] = QuantizeHeadSimd(row + h * columns, columns, to + h * columns);
    }
  } else if constexpr (std::is_same_v<T, BF16>) {
    NarrowSimd(row, count, to);
  } else {
    for (std::size_t i = 0; i < count; ++i) to[i] = FromFloat<T>(row[i]);
  }
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
      if (params.values == params.keys) continue;
      StoreRow<typename View::Element>(values, b, t, params.v + m * params.v_stride);
    }
  }
}

}  // namespace

void KvStoreCpu(const KvStoreParams& params, std::int64_t row_begin, std::int64_t row_end) {
  std::visit([&](const auto& keys) { StoreRows(params, keys, row_begin, row_end); }, *params.keys);
}

}  // namespace quire::kernels::internal
