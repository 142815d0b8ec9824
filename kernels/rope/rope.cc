#include "kernels/rope/rope.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status RopeAngles(const Backend& backend, const RopeAnglesParams& params) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::RopeAnglesCuda(*backend.cuda(), params);
  }
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    if (params.positions[m] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("position ", params.positions[m], " in row ", m, " is negative"));
    }
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.num_pairs) * 15,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::RopeAnglesCpu(params, begin, end);
                      });
  return absl::OkStatus();
}

absl::Status Rope(const Backend& backend, const RopeParams& params) {
  if (backend.cuda() != nullptr) {
    return absl::InvalidArgumentError("rope on a GPU is part of the KV store");
  }
  if (params.rotary_size % 2 != 0 || params.rotary_first > params.head_size ||
      params.rotary_size > params.head_size - params.rotary_first) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary size ", params.rotary_size, " from column ", params.rotary_first,
                     " must be even and inside the head of ", params.head_size));
  }
  const std::int64_t columns = std::int64_t{params.num_heads} * params.head_size;
  if (params.x_stride < columns) {
    return absl::InvalidArgumentError(absl::StrCat("stride of rope rows is ", params.x_stride,
                                                   ", it must be at least the size of all heads, ",
                                                   columns));
  }
  backend.ParallelFor(
      params.num_rows, static_cast<double>(columns) * 0.5,
      [&](std::int64_t begin, std::int64_t end, int) { internal::RopeCpu(params, begin, end); });
  return absl::OkStatus();
}

}  // namespace quire::kernels
