#include "kernels/elementwise/embedding.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status Embedding(const Backend& backend, const EmbeddingParams& params) {
  if (params.dtype != DType::kF32 && params.dtype != DType::kBF16 && params.dtype != DType::kF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "embedding weights are ", DTypeName(params.dtype), ", supported are f32, bf16 and f16"));
  }
  if (params.y_stride < params.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("embedding has y_stride ", params.y_stride,
                                                   ", must be at least hidden = ", params.hidden));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::EmbeddingCuda(*backend.cuda(), params);
  }
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    if (params.tokens[m] < 0 || static_cast<std::uint32_t>(params.tokens[m]) >= params.vocab) {
      return absl::InvalidArgumentError(absl::StrCat("token ", params.tokens[m], " in row ", m,
                                                     " is outside the vocabulary of ",
                                                     params.vocab));
    }
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.hidden) * 0.2,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        internal::EmbeddingCpu(params, begin, end);
                      });
  return absl::OkStatus();
}

}  // namespace quire::kernels
