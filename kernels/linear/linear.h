#pragma once

// y = x W^T + bias + residual, and the packed forms that weights are kept in; how matrices of 8 and
// 4 bits come to be: quantized_linear.h and fp8_linear.h.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/backend/gate_shape.h"
#include "kernels/linear/packed_linear.h"
#include "kernels/linear/weight_memory.h"

namespace quire::kernels {

struct QkvStoreParams;

// Rows of a stored matrix, [num_rows, K] without gaps; any alignment, for mapped files promise
// none.
struct WeightRows {
  const void* data;
  std::uint32_t num_rows;
};

// How a plain matrix is packed for a GPU; the CPU ignores it.
struct CudaPacking {
  // The type of x that Linear will be given: the tensor cores multiply equal types, so for bf16 the
  // weights of other types are rounded to bf16 here.
  DType activations = DType::kF32;
  WeightMemory* memory = nullptr;  // where the matrix is put; null: in an allocation of its own
};

// What a plain matrix takes of CudaPacking::memory.
std::int64_t CudaPlainRoom(DType dtype, std::uint32_t n, std::uint32_t k, DType activations);

// Packs matrices that share K and dtype one below the other, such as Q, K and V, so that one Linear
// computes them all. Returns INVALID_ARGUMENT for a dtype other than f32, bf16, f16, for no rows,
// for K = 0, or for activations of another type than f32 and bf16; RESOURCE_EXHAUSTED without
// memory. REQUIRES: cuda.memory is null or has CudaPlainRoom of these rows left.
absl::StatusOr<PackedLinear> PackLinearWeights(const Backend& backend,
                                               std::span<const WeightRows> sources, DType dtype,
                                               std::uint32_t k, const CudaPacking& cuda = {});
// The same row by row, for rows that lie nowhere as a whole: `source` writes the K elements of row
// `row` of [0, n) and is called once for each, from several threads. `out` is 64-byte aligned.
// REQUIRES: the backend is the CPU.
absl::StatusOr<PackedLinear> PackPlainRows(
    const Backend& backend, DType dtype, std::uint32_t n, std::uint32_t k,
    absl::FunctionRef<void(std::uint32_t row, std::byte* out)> source);
// A matrix of zeros in the CPU's layout, for bytes that PackLinearWeights once made of [n, k].
// Errors as there.
absl::StatusOr<PackedLinear> AllocatePackedLinear(DType dtype, std::uint32_t n, std::uint32_t k);
// One matrix for f32 activations.
absl::StatusOr<PackedLinear> PackLinearWeight(const Backend& backend, const void* w, DType dtype,
                                              std::uint32_t n, std::uint32_t k);

struct LinearParams {
  ConstFloatPtr x;              // [num_rows, K], rows x_stride apart
  const PackedLinear* weight;   // [N, K]
  const float* bias = nullptr;  // [N]; null: none
  const float* residual =
      nullptr;            // [num_rows, N], rows residual_stride apart; null: none; may be y
  FloatPtr y;             // [num_rows, N], rows y_stride apart; overlaps no input but residual
  std::int64_t x_stride;  // elements, at least K
  std::int64_t residual_stride = 0;  // elements, at least N when there is a residual
  std::int64_t y_stride;             // elements, at least N; with a gate at least N / 2
  std::uint32_t num_rows;
  // Features 0 .. N / 2 - 1 gate the others: y is [num_rows, N / 2]. Only with what TakesGate
  // says, without a residual.
  std::optional<GateShape> gate = {};
  const QkvStoreParams* store = nullptr;  // behind the product: store->qkv is y; null: none
};

// Whether the halves of N can gate each other in the product itself: on the tensor cores of a GPU,
// with bf16 x and y, where N is a multiple of 128 and the library does not compute the product.
bool TakesGate(const Backend& backend, const PackedLinear& weight, DType x, DType y);

// y[m][n] = (sum_k x[m][k] W[n][k] + bias[n]) + residual[m][n], weights widened to f32. An output
// has the same bits whatever num_rows, the row's place and the thread count. Returns
// INVALID_ARGUMENT on a stride below its row, or a gate that is not taken.
//
// With a gate y[m][j] is GatedProduct of what would be y[m][j] and y[m][N / 2 + j], each rounded to
// bf16 before: the bits of Linear and GatedProduct one after the other.
//
// With a store QkvStore comes behind, and its errors: bit for bit in a launch of its own, or on the
// tensor cores of a GPU, for few rows (kMaxStoredRows), pages of bf16 and heads of a size that
// divides 128, by the blocks of the product: each has whole heads, whatever the split of K.
//
// f32 x and y, both backends: K is cut into parts of 256; inside a part one chain of fused
// multiply-adds with k ascending; parts are added in order.
//
// e4m3 weights on the CPU: as f32, but parts end where groups of inputs end, too, and the sum of x
// times codes of a part is multiplied by its scale as it is added, in one rounding. Such sums
// are subnormal below 2^-54, in steps of 2^-77; x of 2^80 and more counts as infinite.
//
// Where the weights round rows, x is first what fp8_rows.h makes of it, and a row that holds what
// is not finite there is NaN as a whole. Weights that lie by rows meet bf16 x only, or
// INVALID_ARGUMENT; codes are multiplied by codes on fp8 tensor cores, in the order of
// linear_reduction.h but for what the device rounds inside 128 inputs, whose sum it keeps to about
// 14 bits of the largest addend, and the sum is multiplied by the scale of the row at the end.
//
// Integer weights on the CPU: x is taken in the weights' order, if they have one, and quantised to
// int8 per row and group of inputs, products are summed exactly inside a group, groups are added in
// order (int_linear.h). A group of inputs with a NaN or infinity makes its row NaN.
//
// Weights of 8 and 4 bits and f32 x on CUDA: as f32, of the codes times their scales in f32.
//
// bf16 x, CUDA only; y bf16 or f32; weights bf16 or of 8 or 4 bits. K % 8 == 0: sums by tensor
// cores in the order of linear_reduction.h; x and its rows 16-byte aligned, or INVALID_ARGUMENT.
// Other K: the sum of f32. In kFast, cuBLASLt computes products of bf16 weights whose N and K are
// multiples of 8, unless there is a bias, or a residual and a bf16 y.
absl::Status Linear(const Backend& backend, const LinearParams& params);

namespace internal {

inline constexpr std::uint32_t kLinearPart = 256;
// Rows whose heads the warps of a block store in less time than a launch takes.
inline constexpr std::uint32_t kMaxStoredRows = 8;

// Whether a product runs on the tensor cores of a GPU.
bool OnTensorCores(const PackedLinear& weight, DType x);
// Of the elements of a plain matrix on a GPU.
constexpr DType CudaPlainType(DType dtype, DType activations) {
  return activations == DType::kBF16 ? DType::kBF16 : dtype;
}

// The plain reference, one thread.
void LinearCpu(const LinearParams& params);
absl::StatusOr<PackedLinear> PackLinearCuda(const Backend& backend,
                                            std::span<const WeightRows> sources, DType dtype,
                                            std::uint32_t k, const CudaPacking& packing);
// Picks one of the three below.
absl::Status LinearCuda(const CudaContext& context, const LinearParams& params);
absl::Status LinearScalarCuda(const CudaContext& context, const LinearParams& params);
// y[m][j] = x[m][order[j]] for the rows of params, K of the weight's order() apart.
absl::Status OrderInputsCuda(const CudaContext& context, const LinearParams& params, FloatPtr y);
// Rows of x of weights that round them.
struct RowsToRound {
  ConstFloatPtr x;  // [num_rows, k], rows x_stride apart; 16-byte aligned rows of bf16
  std::int64_t x_stride;
  std::uint32_t k;
  std::uint32_t num_rows;
  const std::uint32_t* x_rows = nullptr;  // row m is x[x_rows[m]]; null: x[m]; device memory
};
// y[m] <- x[m] rounded, code times scale, in x's type and K elements apart.
absl::Status RoundFp8RowsCuda(const CudaContext& context, const RowsToRound& rows, FloatPtr y);
// The same as codes and scales of rows, for bf16 x.
struct RoundedCodes {
  std::uint8_t* codes;  // [num_rows, k], rows stride bytes apart
  std::int64_t stride;  // a multiple of 16
  float* scales;        // [num_rows]
};
absl::Status RoundFp8CodesCuda(const CudaContext& context, const RowsToRound& rows,
                               const RoundedCodes& to);
absl::Status LinearTensorCoreCuda(const CudaContext& context, const LinearParams& params);
// A part of it, with its bits: plain weights on compute capability 9.0. False, and nothing is
// launched, where the driver has no tensor map of x or of the weights, or no clusters; then the
// portable kernel runs. Ignores store.
absl::StatusOr<bool> LinearSm90Cuda(const CudaContext& context, const LinearParams& params);
// Weights that lie by rows and bf16 x, on compute capability 9.0. Ignores store.
absl::Status LinearFp8Sm90Cuda(const CudaContext& context, const LinearParams& params);
// A row-major e4m3 matrix in device memory, [padded n][padded k] (linear_reduction.h).
struct Fp8RowsShape {
  const void* data;
  std::uint32_t n;
  std::uint32_t k;
};
// OK if LinearFp8Sm90Cuda supports the matrix: the device has clusters and the driver a tensor map.
absl::Status CheckFp8RowsSm90(const CudaContext& context, const Fp8RowsShape& weight);
// Once in a process, since every product of a prompt may find none. Threads: any.
void LogPortable(const absl::Status& why);

// Panels [panel_begin, panel_end) of all rows.
void LinearSimd(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end);

}  // namespace internal
}  // namespace quire::kernels
