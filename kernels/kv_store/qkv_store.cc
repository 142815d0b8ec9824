#include "kernels/kv_store/qkv_store.h"

#include "base/check.h"
#include "base/status.h"
#include "kernels/kv_store/kv_store.h"

namespace quire::kernels {

absl::Status QkvStore(const Backend& backend, const QkvStoreParams& params) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::QkvStoreCuda(*backend.cuda(), params);
  }
  QUIRE_CHECK(params.q_norm == nullptr && params.k_norm == nullptr);
  const KvShape shape = KvShapeOf(*params.keys);
  float* const q = params.qkv.f32();
  float* const k = q + std::int64_t{params.num_heads} * shape.head_size;
  float* const v = k + std::int64_t{shape.num_heads} * shape.head_size;
  if (params.rotary_size > 0) {
    // Heads of q and k are adjacent, so one call rotates both.
    QUIRE_RETURN_IF_ERROR(Rope(backend, {.x = q,
                                         .cosines = params.cosines,
                                         .sines = params.sines,
                                         .x_stride = params.qkv_stride,
                                         .num_rows = params.num_rows,
                                         .num_heads = params.num_heads + shape.num_heads,
                                         .head_size = shape.head_size,
                                         .rotary_size = params.rotary_size,
                                         .rotary_first = params.rotary_first,
                                         .style = params.style}));
  }
  return KvStore(backend, {.keys = params.keys,
                           .values = params.values,
                           .k = k,
                           .v = v,
                           .row_offsets = params.row_offsets,
                           .k_stride = params.qkv_stride,
                           .v_stride = params.qkv_stride,
                           .batch_size = params.batch_size});
}

}  // namespace quire::kernels
