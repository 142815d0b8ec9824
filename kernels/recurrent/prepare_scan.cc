#include "kernels/recurrent/prepare_scan.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status PrepareScan(const Backend& backend, const PrepareScanParams& params) {
  const std::uint32_t per_channel = params.heads * params.key_size;
  const bool is_per_head = params.channels == params.heads;
  if (params.heads == 0 ||
      (!is_per_head && (params.b == nullptr || params.channels != per_channel))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scan of ", params.heads, " heads has ", params.channels, " decays, there must be ",
        params.heads, params.b == nullptr ? "" : absl::StrCat(" or ", per_channel)));
  }
  const std::int64_t keys = std::int64_t{params.key_heads} * params.key_size;
  if (params.qk_stride < keys || params.rates_stride < params.channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("scan has strides qk ", params.qk_stride, " and rates ", params.rates_stride,
                     ", they must be at least ", keys, " and ", params.channels));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::PrepareScanCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows,
                      static_cast<double>(keys) * 0.3 + static_cast<double>(params.channels) * 2,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::PrepareScanSimd(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
