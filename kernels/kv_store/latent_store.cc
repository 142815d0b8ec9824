#include "kernels/kv_store/latent_store.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/kv_store/head_columns.h"
#include "kernels/kv_store/kv_store.h"

namespace quire::kernels {
namespace {

absl::Status CheckShapes(const LatentStoreParams& params, const KvShape& shape) {
  if (shape.num_heads == 1 && params.rope_size % 2 == 0 && params.rope_size < shape.head_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("MLA cache rows of ", shape.num_heads,
                                                 " heads of ", shape.head_size, " columns with ",
                                                 params.rope_size,
                                                 " rope columns: there must be 1 head, and an even "
                                                 "number of rope columns below the head size"));
}

absl::Status Rotate(const Backend& backend, const LatentStoreParams& params, float* x,
                    std::uint32_t num_heads, std::uint32_t head_size) {
  return Rope(backend, {.x = x,
                        .cosines = params.cosines,
                        .sines = params.sines,
                        .x_stride = std::int64_t{num_heads} * head_size,
                        .num_rows = params.num_rows,
                        .num_heads = num_heads,
                        .head_size = head_size,
                        .rotary_size = params.rope_size,
                        .rotary_first = head_size - params.rope_size,
                        .style = params.style});
}

}  // namespace

absl::Status LatentStore(const Backend& backend, const LatentStoreParams& params) {
  const KvShape shape = KvShapeOf(*params.rows);
  QUIRE_RETURN_IF_ERROR(CheckShapes(params, shape));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::LatentStoreCuda(*backend.cuda(), params);
  }
  const std::uint32_t columns = shape.head_size;
  const std::uint32_t query = params.nope_size + params.rope_size;
  float* const heads = params.heads.f32();
  float* const latents = params.latents.f32();
  if (params.cosines != nullptr) {
    QUIRE_RETURN_IF_ERROR(Rotate(backend, params, heads, params.num_heads, query));
    QUIRE_RETURN_IF_ERROR(Rotate(backend, params, latents, 1, columns));
  }
  const std::int64_t num_heads = params.num_heads;
  QUIRE_RETURN_IF_ERROR(CopyHeadColumns(backend, {.x = heads,
                                                  .y = params.queries.f32(),
                                                  .x_stride = num_heads * query,
                                                  .y_stride = num_heads * columns,
                                                  .num_rows = params.num_rows,
                                                  .num_heads = params.num_heads,
                                                  .x_head_size = query,
                                                  .y_head_size = columns,
                                                  .x_first = params.nope_size,
                                                  .y_first = columns - params.rope_size,
                                                  .columns = params.rope_size}));
  return KvStore(backend, {.keys = params.rows,
                           .values = params.rows,
                           .k = latents,
                           .v = latents,
                           .row_offsets = params.row_offsets,
                           .k_stride = columns,
                           .v_stride = columns,
                           .batch_size = params.batch_size});
}

}  // namespace quire::kernels
