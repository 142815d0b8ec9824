#include "kernels/kv_store/qkv_store.h"

#include "base/check.h"
#include "base/status.h"
#include "kernels/kv_store/kv_store.h"

namespace quire::kernels {

namespace {

// Multiplies the queries of each row by the factor of its position.
void ScaleQueries(const Backend& backend, const QkvStoreParams& params, std::int64_t columns) {
  const QueryScale& scale = params.q_scale;
  backend.ParallelFor(params.num_rows, static_cast<double>(columns) * 0.1,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t m = begin; m < end; ++m) {
                          const float factor =
                              QueryFactor(scale, static_cast<std::uint32_t>(params.positions[m]));
                          float* const q = params.qkv.f32() + m * params.qkv_stride;
                          for (std::int64_t c = 0; c < columns; ++c) q[c] *= factor;
                        }
                      });
}

}  // namespace

absl::Status QkvStore(const Backend& backend, const QkvStoreParams& params) {
  const bool scales = params.q_scale.beta != 0;
  if (scales && params.q_scale.period == 0) {
    return absl::InvalidArgumentError("q_scale has period 0, it must be above 0");
  }
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
    const std::uint32_t num_keys = params.queries_only ? 0 : shape.num_heads;
    QUIRE_RETURN_IF_ERROR(Rope(backend, {.x = q,
                                         .cosines = params.cosines,
                                         .sines = params.sines,
                                         .x_stride = params.qkv_stride,
                                         .num_rows = params.num_rows,
                                         .num_heads = params.num_heads + num_keys,
                                         .head_size = shape.head_size,
                                         .rotary_size = params.rotary_size,
                                         .rotary_first = params.rotary_first,
                                         .style = params.style}));
  }
  if (scales) ScaleQueries(backend, params, k - q);
  if (params.queries_only) return absl::OkStatus();
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
