#include "kernels/elementwise/sum_rows.h"

#include "absl/strings/str_cat.h"

namespace quire::kernels {

absl::Status SumRows(const Backend& backend, const SumRowsParams& params) {
  const bool is_bf16 = params.x.dtype() == DType::kBF16 && backend.cuda() != nullptr;
  if (!params.x.is_f32() && !is_bf16) {
    return absl::InvalidArgumentError(absl::StrCat("SumRows input is ", DTypeName(params.x.dtype()),
                                                   ", it must be f32, or bf16 on a GPU"));
  }
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SumRowsCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(
      params.columns, static_cast<double>(params.num_rows),
      [&](std::int64_t begin, std::int64_t end, int) { internal::SumRowsCpu(params, begin, end); });
  return absl::OkStatus();
}

}  // namespace quire::kernels
