#pragma once

// Sorts rows by expert, so that the rows of one expert are adjacent, and adds the results of the
// experts to the original rows.
//
// MoE computes y[row] += weight * expert(x[row]), one expert after the other in ascending order.
// The order of a row's sum therefore does not depend on other rows, and memory is needed only for
// the rows of one expert. If all experts are computed at once, SumChosenRows adds their results in
// the same order.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"

namespace quire::kernels {

struct SortByExpertParams {
  const std::uint32_t* experts;  // [num_rows, top_k], distinct within a row (Router)
  const float* weights;          // [num_rows, top_k]
  std::uint32_t* offsets;        // [num_experts + 1]
  std::uint32_t* rows;           // [num_rows * top_k]
  float* row_weights;            // [num_rows * top_k]
  std::uint32_t num_rows;
  std::uint32_t top_k;
  std::uint32_t num_experts;
  std::uint32_t* places = nullptr;  // [num_rows, top_k]; null: not computed
};

// Sorts the choices (the entries of `experts`) by expert. The rows that chose expert e are
// rows[offsets[e]] to rows[offsets[e + 1] - 1], in ascending order. row_weights has their weights
// at the same indices. places[m][j] is the index in `rows` of choice j of row m. On the CPU,
// returns INVALID_ARGUMENT with the row if an expert is not less than num_experts.
absl::Status SortByExpert(const Backend& backend, const SortByExpertParams& params);

struct GatherRowsParams {
  ConstFloatPtr x;            // rows x_stride apart
  const std::uint32_t* rows;  // [num_rows]; null: row i
  FloatPtr y;                 // [num_rows, columns], rows y_stride apart; must not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
  const float* weights = nullptr;  // [num_rows]; null: all ones
};

// Sets y[i] = weights[i] * x[rows[i]], rounded once. x and y are f32 or, on a GPU, both bf16.
// Returns INVALID_ARGUMENT if a stride is less than columns, and for other dtypes.
absl::Status GatherRows(const Backend& backend, const GatherRowsParams& params);

struct AddWeightedRowsParams {
  const float* x;             // [num_rows, columns], rows x_stride apart
  const std::uint32_t* rows;  // [num_rows], distinct; null: row i
  const float* weights;       // [num_rows]; on the CPU null means all ones
  float* y;                   // rows y_stride apart; must not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// Computes y[rows[i]] += weights[i] * x[i] in f32. The product is rounded before the addition.
// Errors are those of GatherRows.
absl::Status AddWeightedRows(const Backend& backend, const AddWeightedRowsParams& params);

struct SumChosenRowsParams {
  const float* x;  // [num_rows * top_k, columns], row i for place i, rows x_stride apart
  const std::uint32_t* places;  // [num_rows, top_k], distinct (SortByExpert)
  const float* weights;         // [num_rows, top_k]; null: all ones
  float* y;                     // [num_rows, columns], rows y_stride apart; must not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t top_k;
  std::uint32_t columns;
  bool add = false;  // true: the sum is added to y; false: y is overwritten
  // [num_rows, columns], rows y_stride apart, added to the sum. Null: nothing is added.
  const float* addend = nullptr;
};

// Sets y[m] to the sum of weights[m][j] * x[places[m][j]] over the choices j of row m, in ascending
// order of places. The sum starts at zero in f32, and each product is rounded before the addition.
// The sum has the same bits as one AddWeightedRows per expert on zeros. Then `addend` is added.
// With `add`, the result is added to y as by ResidualAdd. Returns INVALID_ARGUMENT if a stride is
// less than columns.
absl::Status SumChosenRows(const Backend& backend, const SumChosenRowsParams& params);

// Sets x[i] = 1 / (1 + exp(-x[i])) for `count` f32 values in the backend's memory.
absl::Status SigmoidInPlace(const Backend& backend, float* x, std::uint32_t count);

namespace internal {

absl::Status SortByExpertCuda(const CudaContext& context, const SortByExpertParams& params);
absl::Status GatherRowsCuda(const CudaContext& context, const GatherRowsParams& params);
absl::Status AddWeightedRowsCuda(const CudaContext& context, const AddWeightedRowsParams& params);
absl::Status SumChosenRowsCuda(const CudaContext& context, const SumChosenRowsParams& params);
absl::Status SigmoidCuda(const CudaContext& context, float* x, std::uint32_t count);

}  // namespace internal
}  // namespace quire::kernels
