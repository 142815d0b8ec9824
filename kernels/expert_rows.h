#pragma once

// The way of rows to their experts and back: rows sorted by expert, the rows of one expert side by
// side for its matrices, and their results added up where they came from.
//
// A mixture of experts computes, one expert after the other in ascending order, y[row] += weight *
// expert(x[row]). Each row's sum therefore has the order of its own experts, whatever rows are
// beside it, and memory is needed for the rows of one expert only.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"

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
};

// Expert e computes rows[offsets[e]] .. rows[offsets[e + 1] - 1], ascending, and their weights lie
// at the same places of row_weights. Returns INVALID_ARGUMENT that names the row for an expert
// beyond num_experts; UNIMPLEMENTED on a GPU.
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

// y[i] = x[rows[i]]. Returns INVALID_ARGUMENT for a stride below columns, UNIMPLEMENTED on a GPU.
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

// x[i] = 1 / (1 + exp(-x[i])) for `count` values of f32 in the memory of the backend, which is the
// CPU.
void SigmoidInPlace(float* x, std::uint32_t count);

}  // namespace quire::kernels
