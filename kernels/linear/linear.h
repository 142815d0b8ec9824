#pragma once

// y = x W^T + bias + residual, and packed weight matrices. quantized_linear.h and fp8_linear.h pack
// matrices of 8 and 4 bits.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "base/weight_format.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/backend/gate_shape.h"
#include "kernels/linear/weight_memory.h"

namespace quire::kernels {

struct QkvStoreParams;

namespace cuda {
struct LtPlans;
}

// A weight matrix [N, K] in the layout of the backend that it was packed for.
//
// CPU: panels of 16 output features, so that a thread streams whole panels and vector lanes run
// along N. The bytes are the same for every instruction set.
//   panel p, 16-bit types:  [ceil(K/2)][16][2]   features p*16 ..., inputs 2j, 2j + 1 side by side
//   panel p, f32:           [ceil(K/2)*2][16]
//
//   panel p, kInt8:         [ceil(K/4)][16][4] bytes u = q + 128 (with mins: u = q)
//   panel p, kInt4:         [K/8][16][4] bytes, low half inputs 8j .. 8j + 3, high half
//                           8j + 4 .. 8j + 7, each q + 8 (with mins: q)
//   scales:                 one per feature: [panels * 16] f32; groups: [panels][K/group][16] f16,
//                           with mins [panels][K/group][2][16], scales first
//   panel p, kFp8E4M3:      [ceil(K/4)][16][4] bytes
//   scales:                 [panels][ceil(K/group)][16] f32
//
// CUDA, in device memory: kPlain is [N, K], row-major. The other formats are stored in the order in
// which the lanes of a warp hold them, with their scales and zero points (linear_reduction.h).
//
// Place:      made at load by PackLinearWeights, PackQuantizedRows and PackFp8Rows; read by Linear.
// Invariants: in panels, features beyond N and inputs beyond K have the value zero.
// Threads:    immutable.
// Lifetime:   owns its memory, or shares that of the WeightMemory it was packed into; movable.
class PackedLinear {
 public:
  static constexpr std::uint32_t kPanel = 16;

  PackedLinear() = default;

  std::uint32_t n() const { return n_; }
  std::uint32_t k() const { return k_; }
  WeightFormat format() const { return format_; }
  // The dtype of elements if the format is kPlain, else of scales.
  DType dtype() const { return dtype_; }
  // Inputs that share a scale; K means one scale per output feature.
  std::uint32_t group() const { return group_; }
  // A weight is scale * q + min, or with min_in_steps, that is with zero points, scale * (q + min).
  // CUDA supports zero points only.
  bool has_min() const { return has_min_; }
  bool min_in_steps() const { return min_in_steps_; }
  // Linear first quantizes activations to e4m3 (fp8_rows.h); kFp8E4M3 only.
  bool rounds_rows() const { return rounds_rows_; }
  // The matrix is row-major, for products on fp8 tensor cores; CUDA only.
  bool lies_by_rows() const { return lies_by_rows_; }
  std::uint32_t num_panels() const { return (n_ + kPanel - 1) / kPanel; }
  // CPU only.
  std::int64_t panel_bytes() const {
    if (format_ == WeightFormat::kInt8 || format_ == WeightFormat::kFp8E4M3) {
      return (std::int64_t{k_} + 3) / 4 * 4 * kPanel;
    }
    if (format_ == WeightFormat::kInt4) return std::int64_t{k_} / 2 * kPanel;
    return (std::int64_t{k_} + 1) / 2 * 2 * kPanel * DTypeSize(dtype_);
  }
  std::int64_t size_bytes() const {
    return data_.size_bytes() + scales_.size_bytes() + order_.size_bytes();
  }
  const void* data() const { return data_.data(); }
  // Null for kPlain.
  const void* scales() const { return scales_.data(); }
  // The act-order permutation, [K], or null: packed input j is input order()[j] of x. Integers
  // only. It is not part of data() and scales().
  const std::uint32_t* order() const { return static_cast<const std::uint32_t*>(order_.data()); }
  // The memory of data() and scales(), which packed files hold. REQUIRES: made for the CPU.
  std::span<std::byte> element_memory() const { return data_.bytes(); }
  std::span<std::byte> scale_memory() const { return scales_.bytes(); }
  // cuBLASLt algorithms for this shape; null unless determinism is kFast.
  const cuda::LtPlans* library_plans() const { return library_plans_; }
  // W[n][k] as f32, for references and tests. REQUIRES: made for the CPU.
  float At(std::uint32_t n, std::uint32_t k) const;

 private:
  friend class LinearPacker;
  friend class CudaLinearPacker;
  friend class QuantizedPacker;
  friend class Fp8Packer;
  float Fp8At(std::uint32_t n, std::uint32_t k) const;
  float QuantizedAt(std::uint32_t n, std::uint32_t k) const;

  std::uint32_t n_ = 0;
  std::uint32_t k_ = 0;
  std::uint32_t group_ = 0;
  bool has_min_ = false;
  bool min_in_steps_ = false;
  bool rounds_rows_ = false;
  bool lies_by_rows_ = false;
  WeightFormat format_ = WeightFormat::kPlain;
  DType dtype_ = DType::kInvalid;
  DeviceBuffer data_;
  DeviceBuffer scales_;
  DeviceBuffer order_;
  const cuda::LtPlans* library_plans_ = nullptr;
};

// Contiguous rows of a stored matrix, [num_rows, K]. The alignment is arbitrary, as in mapped
// files.
struct WeightRows {
  const void* data;
  std::uint32_t num_rows;
};

// How an unquantized matrix is packed for a GPU; the CPU ignores it.
struct CudaPacking {
  // The dtype of x in Linear. Tensor cores multiply equal types, so with bf16 activations weights
  // of other dtypes are rounded to bf16.
  DType activations = DType::kF32;
  WeightMemory* memory = nullptr;  // memory of the matrix; null: a separate allocation
};

// Bytes of CudaPacking::memory that an unquantized matrix uses.
std::int64_t CudaPlainRoom(DType dtype, std::uint32_t n, std::uint32_t k, DType activations);

// Packs matrices with the same K and dtype, such as Q, K and V, one below the other, so that one
// Linear computes them. Returns INVALID_ARGUMENT for a dtype other than f32, bf16 and f16, for no
// rows, for K = 0, or for activations other than f32 and bf16; RESOURCE_EXHAUSTED if memory cannot
// be allocated. REQUIRES: cuda.memory is null or has CudaPlainRoom of these rows left.
absl::StatusOr<PackedLinear> PackLinearWeights(const Backend& backend,
                                               std::span<const WeightRows> sources, DType dtype,
                                               std::uint32_t k, const CudaPacking& cuda = {});
// The same for rows that are generated one by one. `source` writes the K elements of a row, and is
// called once for each row in [0, n), from several threads. `out` is 64-byte aligned. REQUIRES: the
// backend is the CPU.
absl::StatusOr<PackedLinear> PackPlainRows(
    const Backend& backend, DType dtype, std::uint32_t n, std::uint32_t k,
    absl::FunctionRef<void(std::uint32_t row, std::byte* out)> source);
// Allocates a matrix of zeros in the CPU's layout, for bytes that PackLinearWeights made of a
// matrix [n, k]. Errors are those of PackLinearWeights.
absl::StatusOr<PackedLinear> AllocatePackedLinear(DType dtype, std::uint32_t n, std::uint32_t k);
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
  // Features 0 .. N / 2 - 1 gate the others, and y is [num_rows, N / 2]. REQUIRES: CanFuseGate is
  // true and there is no residual.
  std::optional<GateShape> gate = {};
  const QkvStoreParams* store = nullptr;  // QkvStore after the product: store->qkv is y; null: none
};

// True if the product itself can apply a gate: on the tensor cores of a GPU, with bf16 x and y, if
// N is a multiple of 128 and cuBLASLt does not compute the product.
bool CanFuseGate(const Backend& backend, const PackedLinear& weight, DType x, DType y);

// y[m][n] = (sum_k x[m][k] W[n][k] + bias[n]) + residual[m][n], with weights widened to f32. The
// bits of an output do not depend on num_rows, the position of the row and the number of threads.
// Returns INVALID_ARGUMENT for a stride below its row, or a gate that the product cannot apply.
//
// With a gate, y[m][j] is GatedProduct of the values that y[m][j] and y[m][N / 2 + j] would have,
// each rounded to bf16. The bits are those of Linear followed by GatedProduct.
//
// With a store, QkvStore runs after the product, with its errors. It is a separate launch, or, with
// the same bits, part of the product: on the tensor cores of a GPU, for at most kMaxStoredRows
// rows, bf16 pages and head sizes that divide 128. Then each block has whole heads.
//
// f32 x and y, both backends: K is divided into parts of 256. A part is one chain of fused
// multiply-adds with ascending k; parts are added in order.
//
// e4m3 weights on the CPU: as f32, but parts also end where groups end. The sum of x times e4m3
// values of a part is multiplied by its scale when it is added, in one rounding. Such sums are
// subnormal below 2^-54, in steps of 2^-77; x of 2^80 and more counts as infinite.
//
// Weights with rounds_rows: x is first quantized (fp8_rows.h), and a row with non-finite values
// becomes NaN. Row-major weights require bf16 x, else INVALID_ARGUMENT. They are multiplied on fp8
// tensor cores in the order of linear_reduction.h. The device rounds sums of 128 inputs to about 14
// bits of the largest addend. The scale of the row multiplies the total sum.
//
// Integer weights on the CPU: x is permuted if the weights have an act-order permutation, and
// quantized to int8 per row and group of inputs. Products are summed exactly inside a group; groups
// are added in order (int_linear.h). A group of inputs with a NaN or infinity makes its row NaN.
//
// Weights of 8 and 4 bits and f32 x on CUDA: as f32, with quantized weights times scales in f32.
//
// bf16 x, CUDA only: y is bf16 or f32, weights are bf16 or have 8 or 4 bits. If K % 8 == 0, tensor
// cores compute the sums in the order of linear_reduction.h; x and its rows must be 16-byte
// aligned, else INVALID_ARGUMENT. For other K the sum is that of f32. In kFast, cuBLASLt computes
// products of bf16 weights whose N and K are multiples of 8, unless there is a bias, or a residual
// and bf16 y.
absl::Status Linear(const Backend& backend, const LinearParams& params);

namespace internal {

inline constexpr std::uint32_t kLinearPart = 256;
// Up to this number of rows, storing the heads in the product is faster than another launch.
inline constexpr std::uint32_t kMaxStoredRows = 8;

// True if a product runs on the tensor cores of a GPU.
bool OnTensorCores(const PackedLinear& weight, DType x);
// The dtype of an unquantized matrix on a GPU.
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
// Applies the act-order permutation of the weight: y[m][j] = x[m][order[j]], rows of y K apart.
absl::Status OrderInputsCuda(const CudaContext& context, const LinearParams& params, FloatPtr y);
// Rows of x that are quantized to e4m3.
struct RowsToRound {
  ConstFloatPtr x;  // [num_rows, k], rows x_stride apart; 16-byte aligned rows of bf16
  std::int64_t x_stride;
  std::uint32_t k;
  std::uint32_t num_rows;
  const std::uint32_t* x_rows = nullptr;  // row m is x[x_rows[m]]; null: x[m]; device memory
};
// Writes quantized rows as value times scale, in the dtype of x, rows of y K apart.
absl::Status RoundFp8RowsCuda(const CudaContext& context, const RowsToRound& rows, FloatPtr y);
// Writes quantized rows as e4m3 values and row scales, for bf16 x.
struct RoundedCodes {
  std::uint8_t* codes;  // [num_rows, k], rows stride bytes apart
  std::int64_t stride;  // a multiple of 16
  float* scales;        // [num_rows]
};
absl::Status RoundFp8CodesCuda(const CudaContext& context, const RowsToRound& rows,
                               const RoundedCodes& to);
absl::Status LinearTensorCoreCuda(const CudaContext& context, const LinearParams& params);
// The same bits for unquantized weights on compute capability 9.0. Returns false without a launch
// if the driver has no tensor map of x or of the weights, or no clusters. Then the portable kernel
// runs. Ignores store.
absl::StatusOr<bool> LinearSm90Cuda(const CudaContext& context, const LinearParams& params);
// Row-major e4m3 weights and bf16 x on compute capability 9.0. Ignores store.
absl::Status LinearFp8Sm90Cuda(const CudaContext& context, const LinearParams& params);
// OK if LinearFp8Sm90Cuda supports the weight: the device has clusters and the driver a tensor map.
absl::Status CheckFp8RowsSm90(const CudaContext& context, const PackedLinear& weight);
// Logs once per process that the portable kernel runs. Threads: any.
void LogPortable(const absl::Status& why);

// Computes panels [panel_begin, panel_end) for all rows.
void LinearSimd(const LinearParams& params, std::int64_t panel_begin, std::int64_t panel_end);

}  // namespace internal
}  // namespace quire::kernels
