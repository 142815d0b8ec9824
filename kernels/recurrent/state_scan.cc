#include "kernels/recurrent/state_scan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status StateScan(const Backend& backend, const StateScanParams& params) {
  using internal::kScanColumns;
  if (params.key_heads == 0 || params.heads == 0 || params.heads % params.key_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "scan has ", params.heads, " heads, the number must be above 0 and a multiple of ",
        params.key_heads, ", the number of key heads"));
  }
  const std::int64_t columns = std::max(std::int64_t{params.heads} * params.value_size,
                                        std::int64_t{params.key_heads} * params.key_size);
  if (params.key_size == 0 || params.key_size > kMaxStateRows || params.value_size == 0 ||
      params.qkv_stride < columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("scan has states of ", params.key_size, " x ", params.value_size,
                     " and stride ", params.qkv_stride, ": the first size must be 1 to ",
                     kMaxStateRows, ", the second above 0, the stride at least ", columns));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::StateScanCuda(*backend.cuda(), params);
  }
  const std::uint32_t rows = params.rows.batch_size;
  // Items of rows with one token cover all columns of a head, because columns are adjacent in
  // memory.
  const bool one_token = params.rows.num_tokens <= rows;
  const std::uint32_t width = one_token ? params.value_size : kScanColumns;
  const std::uint32_t blocks = (params.value_size + width - 1) / width;
  const std::uint32_t items = params.heads * blocks;  // items of a row
  const double tokens_per_row = static_cast<double>(params.rows.num_tokens) / std::max(rows, 1u);
  backend.ParallelItems(std::int64_t{rows} * items, (tokens_per_row + 1) * params.key_size * 4,
                        [&](std::int64_t item, int) {
                          const auto row = static_cast<std::uint32_t>(item / items);
                          if (params.rows.tokens_of(row) == 0) return;
                          const auto head = static_cast<std::uint32_t>(item % items / blocks);
                          const auto begin = static_cast<std::uint32_t>(item % blocks) * width;
                          internal::StateScanSimd(params, row, head, begin,
                                                  std::min(begin + width, params.value_size));
                        });
  return absl::OkStatus();
}

}  // namespace quire::kernels
