#pragma once

// The way of rows to their experts and back: rows sorted by expert, the rows of one expert side by
// side for its matrices, and their results added up where they came from.
//
// A mixture of experts computes, one expert after the other in ascending order, y[row] += weight *
// expert(x[row]). Each row's sum therefore has the order of its own experts, whatever rows are
// beside it, and memory is needed for the rows of one expert only. Where all experts are computed
// at once, SumChosenRows adds in that order.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/backend.h"

namespace quire::kernels {

struct SortByExpertParams {
  const std::uint32_t* experts;  // [num_rows, top_k], distinct in a row; Router
  const float* weights;          // [num_rows, top_k]
  std::uint32_t* offsets;        // [num_experts + 1]
  std::uint32_t* rows;           // [num_rows * top_k]
  float* row_weights;            // [num_rows * top_k]
  std::uint32_t num_rows;
  std::uint32_t top_k;
  std::uint32_t num_experts;
  std::uint32_t* places = nullptr;  // [num_rows, top_k]; null: not wanted
};

// Expert e computes rows[offsets[e]] .. rows[offsets[e + 1] - 1], ascending, and their weights lie
// at the same places of row_weights; places says which place each choice has. Returns
// INVALID_ARGUMENT that names the row for an expert beyond num_experts, on the CPU only: a GPU's
// router makes none.
absl::Status SortByExpert(const Backend& backend, const SortByExpertParams& params);

struct GatherRowsParams {
  const float* x;             // rows x_stride apart
  const std::uint32_t* rows;  // [num_rows]
  float* y;                   // [num_rows, columns], rows y_stride apart; does not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// y[i] = x[rows[i]]. Returns INVALID_ARGUMENT for a stride below columns. REQUIRES: the CPU;
// GroupedLinear finds rows by their numbers.
absl::Status GatherRows(const Backend& backend, const GatherRowsParams& params);

struct AddWeightedRowsParams {
  const float* x;             // [num_rows, columns], rows x_stride apart
  const std::uint32_t* rows;  // [num_rows], distinct; null: row i
  const float* weights;       // [num_rows]
  float* y;                   // rows y_stride apart; does not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t columns;
};

// y[rows[i]] += weights[i] * x[i], in f32, the product rounded before it is added. Errors as
// GatherRows.
absl::Status AddWeightedRows(const Backend& backend, const AddWeightedRowsParams& params);

struct SumChosenRowsParams {
  const float* x;               // [num_rows * top_k, columns] by place, rows x_stride apart
  const std::uint32_t* places;  // [num_rows, top_k], distinct; SortByExpert
  const float* weights;         // [num_rows, top_k]
  float* y;                     // [num_rows, columns], rows y_stride apart; does not overlap x
  std::int64_t x_stride;
  std::int64_t y_stride;
  std::uint32_t num_rows;
  std::uint32_t top_k;
  std::uint32_t columns;
  bool add = false;             // to what y holds
  const float* also = nullptr;  // [num_rows, columns], rows y_stride apart, added first; null: none
};

// y[m] = sum over the choices j of m, places ascending, of weights[m][j] * x[places[m][j]]: in f32
// from zero, each product rounded before it is added. These are the bits of AddWeightedRows on
// zeros, expert after expert; then `also` is added; with `add` of ResidualAdd of that sum. Returns
// INVALID_ARGUMENT for a stride below columns.
absl::Status SumChosenRows(const Backend& backend, const SumChosenRowsParams& params);

// x[i] = 1 / (1 + exp(-x[i])) for `count` values of f32 in the memory of the backend.
absl::Status SigmoidInPlace(const Backend& backend, float* x, std::uint32_t count);

namespace internal {

absl::Status SortByExpertCuda(const CudaContext& context, const SortByExpertParams& params);
absl::Status AddWeightedRowsCuda(const CudaContext& context, const AddWeightedRowsParams& params);
absl::Status SumChosenRowsCuda(const CudaContext& context, const SumChosenRowsParams& params);
absl::Status SigmoidCuda(const CudaContext& context, float* x, std::uint32_t count);

}  // namespace internal
}  // namespace quire::kernels
