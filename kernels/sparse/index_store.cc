#include "kernels/sparse/index_store.h"

#include "base/status.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/norm/layer_norm.h"

namespace quire::kernels {

absl::Status IndexStore(const Backend& backend, const IndexStoreParams& params) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::IndexStoreCuda(*backend.cuda(), params);
  }
  const std::uint32_t size = KvShapeOf(*params.rows).head_size;
  QUIRE_RETURN_IF_ERROR(LayerNorm(backend, {.x = params.keys,
                                            .weight = params.norm_weight,
                                            .bias = params.norm_bias,
                                            .y = params.keys,
                                            .num_rows = params.num_rows,
                                            .columns = size,
                                            .epsilon = params.epsilon}));
  const auto rotate = [&](float* x, std::uint32_t num_heads) {
    return Rope(backend, {.x = x,
                          .cosines = params.cosines,
                          .sines = params.sines,
                          .x_stride = std::int64_t{num_heads} * size,
                          .num_rows = params.num_rows,
                          .num_heads = num_heads,
                          .head_size = size,
                          .rotary_size = params.rope_size,
                          .style = params.style});
  };
  QUIRE_RETURN_IF_ERROR(rotate(params.queries, params.num_heads));
  QUIRE_RETURN_IF_ERROR(rotate(params.keys, 1));
  return KvStore(backend, {.keys = params.rows,
                           .values = params.rows,
                           .k = params.keys,
                           .v = params.keys,
                           .row_offsets = params.row_offsets,
                           .k_stride = size,
                           .v_stride = size,
                           .batch_size = params.batch_size});
}

}  // namespace quire::kernels
