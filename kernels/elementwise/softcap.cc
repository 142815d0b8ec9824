#include "kernels/elementwise/softcap.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status Softcap(const Backend& backend, const SoftcapParams& params) {
  if (params.x_stride < params.columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("softcap of ", params.columns, " columns has x_stride ", params.x_stride,
                     ", which must be at least the number of columns"));
  }
  if (params.cap < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("softcap is ", params.cap, ", it must be at least 0"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SoftcapCuda(*backend.cuda(), params);
  }
  // Number of columns of a work item, small enough that one row of a large vocabulary uses all
  // threads.
  constexpr std::int64_t kGrain = 1024;
  backend.ParallelFor(
      params.columns, static_cast<double>(params.num_rows),
      [&](std::int64_t begin, std::int64_t end, int) { internal::SoftcapSimd(params, begin, end); },
      kGrain);
  return absl::OkStatus();
}

}  // namespace quire::kernels
