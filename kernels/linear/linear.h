#pragma once

// Computes y = x W^T + bias + residual, and packs unquantized weight matrices. quantized_linear.h
// and fp8_linear.h pack matrices of 8 and 4 bits.

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

// Contiguous rows of a stored matrix, [num_rows, K]. Their alignment is arbitrary, because they may
// be in a mapped file.
struct WeightRows {
  const void* data;
  std::uint32_t num_rows;
};

// Specifies how an unquantized matrix is packed for a GPU. The CPU ignores this struct.
struct CudaPacking {
  // The dtype of x in Linear. Tensor cores multiply equal types, so with bf16 activations weights
  // of other dtypes are rounded to bf16.
  DType activations = DType::kF32;
  WeightMemory* memory = nullptr;  // memory for the matrix; null: a separate allocation
};

// Returns the bytes of CudaPacking::memory that an unquantized matrix uses, padding included.
std::int64_t CudaPlainPaddedBytes(DType dtype, std::uint32_t n, std::uint32_t k, DType activations);

// Packs matrices with the same K and dtype, such as Q, K and V, into one matrix, so that one Linear
// computes all of them. Returns INVALID_ARGUMENT for a dtype other than f32, bf16 and f16, for no
// rows, for K = 0, or for activations other than f32 and bf16. Returns RESOURCE_EXHAUSTED if memory
// cannot be allocated. REQUIRES: cuda.memory is null or has CudaPlainPaddedBytes left for these
// rows.
absl::StatusOr<PackedLinear> PackLinearWeights(const Backend& backend,
                                               std::span<const WeightRows> sources, DType dtype,
                                               std::uint32_t k, const CudaPacking& cuda = {});
// Packs a matrix whose rows are generated one by one. `source` writes the K elements of a row, and
// is called once for each row in [0, n), from several threads. `out` is 64-byte aligned. Errors are
// those of PackLinearWeights. REQUIRES: the backend is the CPU.
absl::StatusOr<PackedLinear> PackPlainRows(
    const Backend& backend, DType dtype, std::uint32_t n, std::uint32_t k,
    absl::FunctionRef<void(std::uint32_t row, std::byte* out)> source);
// Allocates a matrix of zeros in the layout of PackLinearWeights. The caller fills it with the
// bytes of a matrix [n, k] that PackLinearWeights packed earlier. Errors are those of
// PackLinearWeights.
// REQUIRES: the backend is the CPU.
absl::StatusOr<PackedLinear> AllocatePackedLinear(const Backend& backend, DType dtype,
                                                  std::uint32_t n, std::uint32_t k);
// Packs one matrix for f32 activations.
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
  // Features 0 .. N / 2 - 1 gate features N / 2 .. N - 1, and y is [num_rows, N / 2]. Supported
  // only if CanFuseGate is true and there is no residual.
  std::optional<GateShape> gate = {};
  const QkvStoreParams* store = nullptr;  // QkvStore after the product: store->qkv is y; null: none
};

// True if the kernel of the product can also apply a gate. This requires tensor cores, bf16 x and
// y, and N as a multiple of 128. cuBLASLt must not compute the product.
bool CanFuseGate(const Backend& backend, const PackedLinear& weight, DType x, DType y);

// Computes y[m][n] = (sum_k x[m][k] W[n][k] + bias[n]) + residual[m][n], with weights widened to
// f32. The bits of an output do not depend on num_rows, the position of the row or the number of
// threads. Returns INVALID_ARGUMENT for a stride shorter than a row, or a gate that the product
// cannot apply. Also returns it if the weights have ordered pairs (packed_linear.h) and the
// activations of the backend are not bf16.
//
// With a gate, y[m][j] is GatedProduct of the values that y[m][j] and y[m][N / 2 + j] would have
// without it, each rounded to bf16. The bits are those of Linear followed by GatedProduct.
//
// With a store, QkvStore runs after the product, and Linear also returns its errors. On tensor
// cores, the product's launch includes the store if there are at most kMaxStoredRows rows, no
// residual, bf16 pages and a head size that divides 128. Each block then has whole heads. Otherwise
// the store is a separate launch with the same bits.
//
// With bf16 activations (Backend::activations), bf16_linear.h defines all products of the CPU. The
// following paragraphs define all other products.
//
// f32 x and y, on the CPU and on CUDA: K is divided into parts of 256. A part is one chain of fused
// multiply-adds with ascending k. Parts are added in order.
//
// e4m3 weights on the CPU: the order is that of f32, but parts also end where groups end. A part
// sums x times the e4m3 values, without scales. This sum is multiplied by the part's scale and
// added with one rounding. Sums of a part are subnormal below 2^-54, in steps of 2^-77. |x| >= 2^80
// counts as infinite.
//
// Weights with quantizes_activations: x is first quantized (fp8_rows.h), and a row with non-finite
// values becomes NaN. Row-major weights require bf16 x, otherwise INVALID_ARGUMENT is returned.
// They are multiplied on fp8 tensor cores in the order of linear_reduction.h. The tensor cores
// round sums of 128 inputs to about 14 bits of the largest addend. The scale of the row multiplies
// the total sum.
//
// Integer weights on the CPU with f32 activations: the order is that of f32, with dequantized
// weights. With an act-order permutation the inputs are summed in the order of the packed weights.
//
// Integer weights on the CPU with int8 activations: x is permuted if the weights have an act-order
// permutation, and quantized to int8 per row and group of inputs. Products are summed exactly
// inside a group, and groups are added in order (int_linear.h). A group of inputs with a NaN or a
// magnitude of at least 2^117 makes its whole row NaN.
//
// Weights of 8 and 4 bits and f32 x on CUDA: the order is that of f32. Each quantized weight is
// multiplied by its scale in f32.
//
// bf16 x, only on CUDA: y is bf16 or f32, and weights are bf16 or have 8 or 4 bits. If K % 8 == 0,
// tensor cores compute the sums in the order of linear_reduction.h. x and its rows must then be
// 16-byte aligned, otherwise INVALID_ARGUMENT is returned. For other K the order is that of f32. In
// kFast, cuBLASLt computes products of bf16 weights whose N and K are multiples of 8. It does not
// compute products with a bias, or with a residual and bf16 y.
absl::Status Linear(const Backend& backend, const LinearParams& params);

namespace internal {

inline constexpr std::uint32_t kLinearPart = 256;
// Maximum number of rows for which storing the heads in the product is faster than a separate
// launch.
inline constexpr std::uint32_t kMaxStoredRows = 8;

// True if a product runs on the tensor cores of a GPU.
bool RunsOnTensorCores(const PackedLinear& weight, DType x);
// Returns the dtype of an unquantized matrix on a GPU.
constexpr DType CudaPlainType(DType dtype, DType activations) {
  return activations == DType::kBF16 ? DType::kBF16 : dtype;
}

// The reference implementation, with one thread.
void LinearCpu(const LinearParams& params);
absl::StatusOr<PackedLinear> PackLinearCuda(const Backend& backend,
                                            std::span<const WeightRows> sources, DType dtype,
                                            std::uint32_t k, const CudaPacking& packing);
// Calls LinearScalarCuda, LinearTensorCoreCuda or cuBLASLt.
absl::Status LinearCuda(const CudaContext& context, const LinearParams& params);
absl::Status LinearScalarCuda(const CudaContext& context, const LinearParams& params);
// Applies the act-order permutation of the weight: y[m][j] = x[m][order[j]]. Rows of y are K apart.
absl::Status PermuteInputsCuda(const CudaContext& context, const LinearParams& params, FloatPtr y);
// Rows of x that RoundFp8RowsCuda or QuantizeFp8RowsCuda quantizes to e4m3.
struct RowsToQuantize {
  ConstFloatPtr x;  // [num_rows, k], rows x_stride apart; 16-byte aligned rows of bf16
  std::int64_t x_stride;
  std::uint32_t k;
  std::uint32_t num_rows;
  const std::uint32_t* x_rows = nullptr;  // row m is x[x_rows[m]]; null: x[m]; device memory
};
// Writes each quantized value times its scale, in the dtype of x. Rows of y are K apart.
absl::Status RoundFp8RowsCuda(const CudaContext& context, const RowsToQuantize& rows, FloatPtr y);
// Destination of QuantizeFp8RowsCuda, which writes e4m3 values and row scales, for bf16 x.
struct QuantizedFp8Rows {
  std::uint8_t* codes;  // [num_rows, k], rows stride bytes apart
  std::int64_t stride;  // a multiple of 16
  float* scales;        // [num_rows]
};
absl::Status QuantizeFp8RowsCuda(const CudaContext& context, const RowsToQuantize& rows,
                                 const QuantizedFp8Rows& to);
absl::Status LinearTensorCoreCuda(const CudaContext& context, const LinearParams& params);
// Like LinearTensorCoreCuda, for unquantized weights on compute capability 9.0, with the same bits.
// Returns false without a launch if the weights have no tensor map, or if the driver cannot create
// the tensor map of x. The caller then runs the portable kernel. Ignores store.
absl::StatusOr<bool> LinearSm90Cuda(const CudaContext& context, const LinearParams& params);
// Multiplies row-major e4m3 weights by bf16 x on compute capability 9.0. Ignores store.
absl::Status LinearFp8Sm90Cuda(const CudaContext& context, const LinearParams& params);
// A row-major matrix in device memory, [n][k] of bf16 or [padded n][padded k] of e4m3
// (linear_reduction.h).
struct WeightRowsShape {
  const void* data;
  DType dtype;
  std::uint32_t n;
  std::uint32_t k;
};
// Encodes the tensor map for LinearSm90Cuda (bf16) or LinearFp8Sm90Cuda (e4m3). Returns an error if
// the device does not support clusters or the driver cannot create the map. REQUIRES: compute
// capability 9.0.
absl::StatusOr<WeightMap> MapWeightsSm90(const CudaContext& context, const WeightRowsShape& weight);
// Logs once per process that the portable kernel runs. Threads: any.
void LogPortableFallback(const absl::Status& reason);

// Computes panels [panel_begin, panel_end) for all rows. If `panels` is not null, it points to f32
// panels that replace the panels of the weight, starting with panel_begin.
void LinearSimd(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end,
                const float* panels = nullptr);

}  // namespace internal
}  // namespace quire::kernels
