#include "kernels/linear/grouped_linear.h"

#include "absl/strings/str_cat.h"
#include "base/dtype.h"

namespace quire::kernels {
namespace {

std::int64_t AddressOf(const PackedLinear& matrix) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(matrix.data()));
}

}  // namespace

std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of) {
  if (count == 0) return std::nullopt;
  const PackedLinear& first = matrix_of(0);
  if (first.format() != WeightFormat::kPlain || first.dtype() != DType::kBF16 ||
      first.k() % 8 != 0) {
    return std::nullopt;
  }
  const std::int64_t distance = count == 1 ? 0 : AddressOf(matrix_of(1)) - AddressOf(first);
  for (std::uint32_t group = 1; group < count; ++group) {
    const PackedLinear& matrix = matrix_of(group);
    if (matrix.format() != first.format() || matrix.dtype() != first.dtype() ||
        matrix.n() != first.n() || matrix.k() != first.k() ||
        AddressOf(matrix) - AddressOf(first) != group * distance) {
      return std::nullopt;
    }
  }
  return LinearGroups{&first, distance, count};
}

absl::Status GroupedLinear(const Backend& backend, const GroupedLinearParams& params) {
  const PackedLinear& weight = *params.weights.first;
  if (params.x_stride < std::int64_t{weight.k()} || params.y_stride < std::int64_t{weight.n()}) {
    return absl::InvalidArgumentError(absl::StrCat("grouped linear [", weight.n(), ", ", weight.k(),
                                                   "] has strides x ", params.x_stride, ", y ",
                                                   params.y_stride, ", each must hold a row"));
  }
  const DType x = params.x.dtype();
  const DType y = params.y.dtype();
  if (backend.cuda() == nullptr || x != DType::kBF16 || (y != DType::kBF16 && y != DType::kF32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("grouped linear has x ", DTypeName(x), " and y ", DTypeName(y),
                     backend.cuda() == nullptr ? " on the CPU" : "",
                     ", supported are bf16 and either of bf16 and f32 on a GPU"));
  }
  if (params.num_rows == 0) return absl::OkStatus();
  if constexpr (kHasCuda) return internal::GroupedLinearCuda(*backend.cuda(), params);
  return absl::OkStatus();
}

}  // namespace quire::kernels
