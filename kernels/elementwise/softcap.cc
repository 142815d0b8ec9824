#include "kernels/elementwise/softcap.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {
namespace {

// Columns of a share, so that one row of a large vocabulary keeps all threads busy.
constexpr std::int64_t kGrain = 1024;

}  // namespace

absl::Status Softcap(const Backend& backend, const SoftcapParams& params) {
  if (params.x_stride < params.columns) {
    return absl::InvalidArgumentError(absl::StrCat("softcap of ", params.columns,
                                                   " columns has rows ", params.x_stride,
                                                   " apart, they must hold a row"));
  }
  if (params.cap < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("softcap is ", params.cap, ", it must be at least 0"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SoftcapCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(
      params.columns, static_cast<double>(params.num_rows),
      [&](std::int64_t begin, std::int64_t end, int) { internal::SoftcapSimd(params, begin, end); },
      kGrain);
  return absl::OkStatus();
}

}  // namespace quire::kernels
