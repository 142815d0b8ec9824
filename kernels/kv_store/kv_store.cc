#include "kernels/kv_store/kv_store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::kernels {

absl::Status KvStore(const Backend& backend, const KvStoreParams& params) {
  QUIRE_RETURN_IF_ERROR(
      CheckKvStep(*params.keys, *params.values, params.row_offsets, params.batch_size));
  const KvShape shape = KvShapeOf(*params.keys);
  const std::int64_t columns = std::int64_t{shape.num_heads} * shape.head_size;
  if (std::min(params.k_stride, params.v_stride) < columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("strides of k and v are ", params.k_stride, " and ", params.v_stride,
                     ", must be at least the size of all heads, ", columns));
  }
  const std::uint32_t first = params.row_offsets[0];
  backend.ParallelFor(params.row_offsets[params.batch_size] - first, static_cast<double>(columns),
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::KvStoreCpu(params, first + begin, first + end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
