#include "kernels/linear/grouped_linear.h"

#include "absl/strings/str_cat.h"
#include "kernels/linear/linear_reduction.h"

namespace quire::kernels {
namespace {

std::int64_t Distance(const void* from, const void* to) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to)) -
         static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from));
}

bool SameForm(const PackedLinear& a, const PackedLinear& b) {
  return a.format() == b.format() && a.dtype() == b.dtype() && a.n() == b.n() && a.k() == b.k() &&
         a.group() == b.group() && a.has_min() == b.has_min() &&
         a.quantizes_activations() == b.quantizes_activations() &&
         (a.act_order() != nullptr) == (b.act_order() != nullptr);
}

bool HasAlignedRows(const float* rows, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(rows) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

std::optional<LinearGroups> LinearGroupsOf(
    std::uint32_t count, absl::FunctionRef<const PackedLinear&(std::uint32_t group)> matrix_of) {
  if (count == 0) return std::nullopt;
  const PackedLinear& first = matrix_of(0);
  LinearGroups groups{.first = &first,
                      .data_distance = 0,
                      .scale_distance = 0,
                      .act_order_distance = 0,
                      .count = count};
  if (count > 1) {
    const PackedLinear& second = matrix_of(1);
    groups.data_distance = Distance(first.data(), second.data());
    groups.scale_distance = Distance(first.scales(), second.scales());
    groups.act_order_distance = Distance(first.act_order(), second.act_order());
  }
  for (std::uint32_t group = 1; group < count; ++group) {
    const PackedLinear& matrix = matrix_of(group);
    if (!SameForm(first, matrix) ||
        Distance(first.data(), matrix.data()) != group * groups.data_distance ||
        Distance(first.scales(), matrix.scales()) != group * groups.scale_distance ||
        Distance(first.act_order(), matrix.act_order()) != group * groups.act_order_distance) {
      return std::nullopt;
    }
  }
  return groups;
}

bool CanFuseGroupedGate(const LinearGroups& weights, DType x, DType y) {
  return internal::RunsOnTensorCores(*weights.first, x) && y == DType::kBF16 &&
         weights.first->n() % cuda::kLinearTileN == 0;
}

bool CanFuseGroupedSum(const GroupedLinearParams& params, const ChosenSum& sum) {
  const PackedLinear& weight = *params.weights.first;
  return internal::RunsOnTensorCores(weight, params.x.dtype()) && params.y.is_f32() &&
         !params.gate && params.first_row == 0 && weight.n() % 4 == 0 &&
         // Rows that are permuted or quantized first must fit in one launch.
         ((weight.act_order() == nullptr && !weight.quantizes_activations()) ||
          params.num_rows <= cuda::LinearPermutedRowsPerPass(weight.k(), params.x.dtype())) &&
         cuda::LinearTilesN(weight.n()) <= cuda::kLinearMaxPartials &&
         cuda::HasFewGroupRows(params.num_rows, params.weights.count) &&
         std::uint64_t{sum.num_rows} * sum.top_k <= kMaxChosen &&
         HasAlignedRows(params.y.f32(), params.y_stride) && HasAlignedRows(sum.y, sum.y_stride) &&
         HasAlignedRows(sum.addend, sum.y_stride);
}

absl::Status GroupedLinear(const Backend& backend, const GroupedLinearParams& params) {
  const PackedLinear& weight = *params.weights.first;
  if (params.gate && !CanFuseGroupedGate(params.weights, params.x.dtype(), params.y.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grouped linear [", weight.n(), ", ", weight.k(), "] of x ", DTypeName(params.x.dtype()),
        " and y ", DTypeName(params.y.dtype()), " cannot apply a gate (CanFuseGroupedGate)"));
  }
  const std::int64_t columns = params.gate ? weight.n() / 2 : weight.n();
  if (params.x_stride < std::int64_t{weight.k()} || params.y_stride < columns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grouped linear [", weight.n(), ", ", weight.k(), "] has strides x ", params.x_stride,
        ", y ", params.y_stride, ", each must be at least the length of a row"));
  }
  if (params.sum && (params.sum->y_stride < std::int64_t{weight.n()} ||
                     !CanFuseGroupedSum(params, *params.sum))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grouped linear [", weight.n(), ", ", weight.k(), "] of ", params.num_rows,
        " rows cannot compute a sum of ", params.sum->num_rows, " rows of ", params.sum->top_k,
        " choices, ", params.sum->y_stride, " elements apart (CanFuseGroupedSum)"));
  }
  if (backend.cuda() == nullptr) {
    return absl::InvalidArgumentError("grouped linear requires a GPU, the backend is the CPU");
  }
  if (params.rows != nullptr && internal::RunsOnTensorCores(weight, params.x.dtype()) &&
      params.x_stride % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("grouped linear has indexed rows of x ", params.x_stride,
                     " elements apart, rows must be 16-byte aligned"));
  }
  if (params.num_rows == 0) return absl::OkStatus();
  if constexpr (kHasCuda) return internal::GroupedLinearCuda(*backend.cuda(), params);
  return absl::OkStatus();
}

}  // namespace quire::kernels
