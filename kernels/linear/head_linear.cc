#include "kernels/linear/head_linear.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::kernels {
namespace {

absl::Status CheckShapes(const HeadLinearParams& params) {
  const std::int64_t n = params.weights[0]->n();
  const std::int64_t k = params.weights[0]->k();
  const auto heads = static_cast<std::int64_t>(params.weights.size());
  if (heads > kMaxHeadsPerLaunch) {
    return absl::InvalidArgumentError(
        absl::StrCat("products of ", heads, " heads, the limit is ", kMaxHeadsPerLaunch));
  }
  for (const PackedLinear* weight : params.weights) {
    if (weight->n() == n && weight->k() == k) continue;
    return absl::InvalidArgumentError(absl::StrCat("products of heads have matrices [", n, ", ", k,
                                                   "] and [", weight->n(), ", ", weight->k(),
                                                   "], all must have the same shape"));
  }
  if (params.x_head_stride >= k && params.y_head_stride >= n &&
      params.x_stride >= (heads - 1) * params.x_head_stride + k &&
      params.y_stride >= (heads - 1) * params.y_head_stride + n) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "products of ", heads, " heads [", n, ", ", k, "] have row strides x ", params.x_stride,
      ", y ", params.y_stride, " and head strides x ", params.x_head_stride, ", y ",
      params.y_head_stride, ", they are too small for the heads"));
}

// True if the tiled kernel can read the rows of x.
bool HasAlignedRows(const HeadLinearParams& params) {
  const auto address = reinterpret_cast<std::uintptr_t>(params.x.data());
  return address % 16 == 0 && params.x_stride % 8 == 0 && params.x_head_stride % 8 == 0;
}

// True if one launch computes all heads. kFast does not matter, because cuBLASLt would need a
// launch per head.
bool IsOneLaunch(const HeadLinearParams& params) {
  const auto even = [](const void* p, std::int64_t stride, std::int64_t head_stride) {
    return reinterpret_cast<std::uintptr_t>(p) % 4 == 0 && stride % 2 == 0 && head_stride % 2 == 0;
  };
  return params.x.dtype() == DType::kBF16 && params.y.dtype() == DType::kBF16 &&
         (params.num_rows <= kHeadLinearRows || HasAlignedRows(params)) &&
         params.weights[0]->n() % 16 == 0 && params.weights[0]->k() % 16 == 0 &&
         even(params.x.data(), params.x_stride, params.x_head_stride) &&
         std::all_of(params.weights.begin(), params.weights.end(), [](const PackedLinear* w) {
           return w->format() == WeightFormat::kPlain && w->dtype() == DType::kBF16;
         });
}

}  // namespace

absl::Status HeadLinear(const Backend& backend, const HeadLinearParams& params) {
  if (params.weights.empty() || params.num_rows == 0) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckShapes(params));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr && IsOneLaunch(params)) {
      return internal::HeadLinearCuda(*backend.cuda(), params);
    }
  }
  for (std::size_t h = 0; h < params.weights.size(); ++h) {
    const auto head = static_cast<std::int64_t>(h);
    QUIRE_RETURN_IF_ERROR(Linear(backend, {.x = params.x + head * params.x_head_stride,
                                           .weight = params.weights[h],
                                           .y = params.y + head * params.y_head_stride,
                                           .x_stride = params.x_stride,
                                           .y_stride = params.y_stride,
                                           .num_rows = params.num_rows}));
  }
  return absl::OkStatus();
}

}  // namespace quire::kernels
