#include "kernels/recurrent/causal_conv.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {
namespace {

// Number of channels of a work item. Rows of one token use larger items, because reading their
// states from memory takes most of the time.
constexpr std::uint32_t kBlock = 128, kOneTokenBlock = 1024;

}  // namespace

absl::Status CausalConv(const Backend& backend, const CausalConvParams& params) {
  if (params.width == 0 || params.width > kMaxTaps || params.channels == 0 ||
      params.x_stride < params.channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("convolution of ", params.channels, " channels with width ", params.width,
                     " and stride ", params.x_stride, ": width must be 1 to ", kMaxTaps,
                     " and the stride at least the number of channels, which must be positive"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::CausalConvCuda(*backend.cuda(), params);
  }
  const std::uint32_t rows = params.rows.batch_size;
  const std::uint32_t block = params.rows.num_tokens <= rows ? kOneTokenBlock : kBlock;
  const std::uint32_t blocks = (params.channels + block - 1) / block;
  const double tokens_per_row = static_cast<double>(params.rows.num_tokens) / std::max(rows, 1u);
  backend.ParallelItems(std::int64_t{rows} * blocks, tokens_per_row * block * params.width * 0.2,
                        [&](std::int64_t item, int) {
                          const auto row = static_cast<std::uint32_t>(item / blocks);
                          const auto begin = static_cast<std::uint32_t>(item % blocks) * block;
                          if (params.rows.tokens_of(row) == 0) return;
                          internal::CausalConvSimd(params, row, begin,
                                                   std::min(begin + block, params.channels));
                        });
  return absl::OkStatus();
}

}  // namespace quire::kernels
