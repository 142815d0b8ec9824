#include "kernels/kv_store/qkv_linear.h"

#include "base/status.h"

namespace quire::kernels {

absl::Status QkvLinear(const Backend& backend, const QkvLinearParams& params) {
  const QkvStoreParams& store = params.store;
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr && internal::StoresAtOnce(params)) {
      return internal::QkvLinearCuda(*backend.cuda(), params);
    }
  }
  QUIRE_RETURN_IF_ERROR(Linear(backend, {.x = params.x,
                                         .weight = params.weight,
                                         .bias = params.bias,
                                         .y = store.qkv,
                                         .x_stride = params.x_stride,
                                         .y_stride = store.qkv_stride,
                                         .num_rows = store.num_rows}));
  return QkvStore(backend, store);
}

}  // namespace quire::kernels
