// Gathering and adding rows move few bytes compared with the experts' weights, so
// auto-vectorization is enough.

#include "kernels/moe/expert_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/backend/exact_math.h"

namespace quire::kernels {
namespace {

absl::Status CheckRows(absl::string_view op, std::int64_t x_stride, std::int64_t y_stride,
                       std::uint32_t columns) {
  if (std::min(x_stride, y_stride) < std::int64_t{columns}) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, " of ", columns, " columns has strides x ", x_stride, ", y ", y_stride,
                     ", each must be at least the number of columns"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SortByExpert(const Backend& backend, const SortByExpertParams& params) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SortByExpertCuda(*backend.cuda(), params);
  }
  const std::size_t count = std::size_t{params.num_rows} * params.top_k;
  std::uint32_t* const offsets = params.offsets;
  std::fill_n(offsets, std::size_t{params.num_experts} + 1, 0u);
  for (std::size_t i = 0; i < count; ++i) {
    if (params.experts[i] >= params.num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", i / params.top_k, " selects expert ", params.experts[i],
                       ", the number of experts is ", params.num_experts));
    }
    ++offsets[params.experts[i]];
  }
  for (std::uint32_t e = 1; e <= params.num_experts; ++e) offsets[e] += offsets[e - 1];
  // offsets[e] is now the end of the rows of expert e. Rows are placed from the last to the first.
  // Afterwards each offset is the first row of its expert, and the rows of an expert are ascending.
  for (std::size_t i = count; i-- > 0;) {
    const std::uint32_t at = --offsets[params.experts[i]];
    params.rows[at] = static_cast<std::uint32_t>(i / params.top_k);
    params.row_weights[at] = params.weights[i];
    if (params.places != nullptr) params.places[i] = at;
  }
  return absl::OkStatus();
}

absl::Status GatherRows(const Backend& backend, const GatherRowsParams& params) {
  QUIRE_RETURN_IF_ERROR(CheckRows("GatherRows", params.x_stride, params.y_stride, params.columns));
  const DType dtype = params.x.dtype();
  const bool is_gpu = backend.cuda() != nullptr;
  if (params.y.dtype() != dtype || (dtype != DType::kF32 && !(is_gpu && dtype == DType::kBF16))) {
    return absl::InvalidArgumentError(
        absl::StrCat("GatherRows of ", DTypeName(dtype), " to ", DTypeName(params.y.dtype()),
                     ": both must be f32", is_gpu ? ", or both bf16" : ""));
  }
  if constexpr (kHasCuda) {
    if (is_gpu) return internal::GatherRowsCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.2,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const std::int64_t row = params.rows == nullptr ? i : params.rows[i];
                          const float* const x = params.x.f32() + row * params.x_stride;
                          float* const y = params.y.f32() + i * params.y_stride;
                          if (params.weights == nullptr) {
                            std::memcpy(y, x, params.columns * sizeof(float));
                            continue;
                          }
                          const float weight = params.weights[i];
                          for (std::uint32_t c = 0; c < params.columns; ++c) y[c] = weight * x[c];
                        }
                      });
  return absl::OkStatus();
}

absl::Status AddWeightedRows(const Backend& backend, const AddWeightedRowsParams& params) {
  QUIRE_RETURN_IF_ERROR(
      CheckRows("AddWeightedRows", params.x_stride, params.y_stride, params.columns));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::AddWeightedRowsCuda(*backend.cuda(), params);
  }
  backend.ParallelFor(params.num_rows, static_cast<double>(params.columns) * 0.3,
                      [&](std::int64_t begin, std::int64_t end, int) {
                        for (std::int64_t i = begin; i < end; ++i) {
                          const float* const x = params.x + i * params.x_stride;
                          const std::int64_t row = params.rows == nullptr ? i : params.rows[i];
                          float* const y = params.y + row * params.y_stride;
                          const float weight = params.weights == nullptr ? 1 : params.weights[i];
                          for (std::uint32_t c = 0; c < params.columns; ++c) y[c] += weight * x[c];
                        }
                      });
  return absl::OkStatus();
}

absl::Status SumChosenRows(const Backend& backend, const SumChosenRowsParams& params) {
  QUIRE_RETURN_IF_ERROR(
      CheckRows("SumChosenRows", params.x_stride, params.y_stride, params.columns));
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SumChosenRowsCuda(*backend.cuda(), params);
  }
  std::vector<float> sum(params.columns);
  for (std::uint32_t m = 0; m < params.num_rows; ++m) {
    const std::size_t first = std::size_t{m} * params.top_k;
    std::fill(sum.begin(), sum.end(), 0.0f);
    std::int64_t last = -1;
    for (std::uint32_t step = 0; step < params.top_k; ++step) {
      std::size_t next = first;
      std::int64_t place = std::numeric_limits<std::int64_t>::max();
      for (std::size_t j = first; j < first + params.top_k; ++j) {
        if (params.places[j] <= last || params.places[j] >= place) continue;
        place = params.places[j];
        next = j;
      }
      last = place;
      const float* const x = params.x + place * params.x_stride;
      const float weight = params.weights == nullptr ? 1 : params.weights[next];
      for (std::uint32_t c = 0; c < params.columns; ++c) sum[c] += weight * x[c];
    }
    float* const y = params.y + m * params.y_stride;
    if (params.addend != nullptr) {
      const float* const addend = params.addend + m * params.y_stride;
      for (std::uint32_t c = 0; c < params.columns; ++c) sum[c] += addend[c];
    }
    for (std::uint32_t c = 0; c < params.columns; ++c) y[c] = params.add ? y[c] + sum[c] : sum[c];
  }
  return absl::OkStatus();
}

absl::Status SigmoidInPlace(const Backend& backend, float* x, std::uint32_t count) {
  if constexpr (kHasCuda) {
    if (backend.cuda() != nullptr) return internal::SigmoidCuda(*backend.cuda(), x, count);
  }
  for (std::uint32_t i = 0; i < count; ++i) x[i] = 1.0f / (1.0f + ExactExp(-x[i]));
  return absl::OkStatus();
}

}  // namespace quire::kernels
