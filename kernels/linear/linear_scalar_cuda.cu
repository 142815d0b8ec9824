// Linear without tensor cores, for f32 activations and for any K. A block computes 32 features x 32
// rows from tiles of 32 inputs in shared memory. Products and their order are those of
// linear_simd.cc, so unquantized weights give the same bits as on a CPU with fused multiply-add.
// This kernel is the reference for the other kernels on a device and is not fast. Weights of 8 and
// 4 bits are converted to f32 when loaded. The resulting bits are those of f32 weights, not of the
// CPU's integer products.

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_groups.cuh"
#include "kernels/linear/linear_reduction.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kTile = 32;  // features, rows and inputs
constexpr std::uint32_t kPitch = kTile + 1;
constexpr std::uint32_t kRowsPerThread = kTile * kTile / kThreads;
static_assert(internal::kLinearPart % kTile == 0);

// Quantized weights, scales and zero points in the layout of linear_reduction.h.
struct CodedWeights {
  const std::uint8_t* codes;
  const std::byte* scales;
  const std::uint8_t* zeros;  // null: none
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t group;  // inputs that share a scale; k: one scale per feature
  WeightFormat format;
  DType scale_dtype;
};

__device__ __forceinline__ float ScaleAt(const CodedWeights& w, std::int64_t at) {
  if (w.scale_dtype == DType::kF32) return reinterpret_cast<const float*>(w.scales)[at];
  const std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(w.scales)[at];
  return w.scale_dtype == DType::kBF16 ? cuda::UnpackBF16(bits).x : cuda::UnpackF16(bits).x;
}

// Converts an e2m1 value: 0, 0.5, 1, 1.5, 2, 3, 4, 6 or a negative of these.
__device__ __forceinline__ float E2M1ToFloat(std::uint32_t code) {
  const std::uint32_t exponent = (code >> 1) & 3;
  const std::uint32_t halves = exponent == 0 ? (code & 1) : ((2 | (code & 1)) << (exponent - 1));
  const float magnitude = static_cast<float>(halves) * 0.5f;
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// Returns W[n][k], rounded once.
__device__ __forceinline__ float ValueAt(const CodedWeights& w, std::uint32_t n, std::uint32_t k) {
  const bool four_bits = w.format == WeightFormat::kInt4 || w.format == WeightFormat::kFp4E2M1;
  const std::uint32_t bits = four_bits ? 4 : 8;
  const std::uint32_t tiles_n = (w.n + cuda::kLinearTileN - 1) / cuda::kLinearTileN;
  const std::uint32_t tiles_k = (w.k + cuda::kLinearTileK - 1) / cuda::kLinearTileK;
  const std::int64_t tile =
      static_cast<std::int64_t>(n / cuda::kLinearTileN) * tiles_k + k / cuda::kLinearTileK;
  const std::uint32_t index =
      cuda::LinearIndexOf(w.format, n % cuda::kLinearTileN, k % cuda::kLinearTileK);
  const std::uint8_t* const codes =
      w.codes + tile * (cuda::kLinearTileN * cuda::kLinearTileK * bits / 8);
  const std::uint32_t code =
      four_bits ? (codes[index / 2] >> (index % 2 * 4)) & 0xfu : codes[index];
  const std::int64_t group = static_cast<std::int64_t>(k / w.group) * tiles_n * cuda::kLinearTileN;
  float value;
  if (w.format == WeightFormat::kFp8E4M3) {
    value = cuda::UnpackF16(cuda::E4M3ToF16(code)).x;
  } else if (w.format == WeightFormat::kFp4E2M1) {
    value = E2M1ToFloat(code);
  } else {
    const std::int32_t zero = w.zeros != nullptr ? w.zeros[group + cuda::LinearZeroIndexOf(n)]
                              : four_bits        ? 8
                                                 : 128;
    value = static_cast<float>(static_cast<std::int32_t>(code) - zero);
  }
  return cuda::Mul(value, ScaleAt(w, group + n));
}

// Kernel arguments. W is a pointer to BF16, F16 or float [n, k], or CodedWeights.
template <typename X, typename W>
struct ScalarArgs {
  const X* x;
  W w;
  const float* bias;
  const float* residual;
  void* y;
  std::int64_t x_stride;
  std::int64_t residual_stride;
  std::int64_t y_stride;
  std::uint32_t n;
  std::uint32_t k;
  std::uint32_t num_rows;
  bool y_is_bf16;
  cuda::RowGroups groups;  // w and bias are those of group 0
};

// Returns the weights of group `group`.
template <typename T>
__device__ __forceinline__ const T* OfGroup(const T* w, const cuda::RowGroups& groups,
                                            std::uint32_t group) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(w) +
                                    group * groups.data_distance);
}

__device__ __forceinline__ CodedWeights OfGroup(CodedWeights w, const cuda::RowGroups& groups,
                                                std::uint32_t group) {
  w.codes += group * groups.data_distance;
  w.scales += group * groups.scale_distance;
  if (w.zeros != nullptr) w.zeros += group * groups.scale_distance;
  return w;
}

// Loads 32 inputs from k0 on, of 32 rows from `first` on, of the matrix `from` [rows, k]. Writes
// them to to[32][kPitch], with zeros beyond the matrix. `groups` maps the rows to rows of `from`.
template <typename T>
__device__ __forceinline__ void LoadTile(float* to, const T* from, std::int64_t stride,
                                         std::uint32_t first, std::uint32_t rows, std::uint32_t k0,
                                         std::uint32_t k, const cuda::RowGroups& groups = {}) {
  const std::uint32_t column = cuda::ThreadIndex() % kTile;
#pragma unroll
  for (std::uint32_t i = 0; i < kRowsPerThread; ++i) {
    const std::uint32_t row = cuda::ThreadIndex() / kTile + i * (kThreads / kTile);
    const bool inside = first + row < rows && k0 + column < k;
    to[row * kPitch + column] =
        inside ? ToFloat(from[cuda::InputRow(groups, first + row) * stride + k0 + column]) : 0.0f;
  }
}

// Like the LoadTile above, but for quantized weights.
__device__ __forceinline__ void LoadTile(float* to, const CodedWeights& from, std::int64_t,
                                         std::uint32_t first, std::uint32_t rows, std::uint32_t k0,
                                         std::uint32_t k) {
  const std::uint32_t column = cuda::ThreadIndex() % kTile;
  for (std::uint32_t i = 0; i < kRowsPerThread; ++i) {
    const std::uint32_t row = cuda::ThreadIndex() / kTile + i * (kThreads / kTile);
    const bool inside = first + row < rows && k0 + column < k;
    to[row * kPitch + column] = inside ? ValueAt(from, first + row, k0 + column) : 0.0f;
  }
}

// The launch bound is four blocks per multiprocessor. With more, the compiler would spill
// registers.
template <typename X, typename W>
__global__ void __launch_bounds__(kThreads, 4) LinearScalarKernel(const ScalarArgs<X, W> args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  float* const w_tile = reinterpret_cast<float*>(cuda::SharedMemory16());  // [features][kPitch]
  float* const x_tile = w_tile + kTile * kPitch;                           // [rows][kPitch]
  const std::uint32_t feature = cuda::ThreadIndex() % kTile;
  const std::uint32_t first_row = cuda::ThreadIndex() / kTile * kRowsPerThread;
  const std::uint32_t n0 = cuda::BlockX() * kTile;
  W weights = args.w;
  const float* bias = args.bias;
  std::uint32_t m0 = cuda::BlockY() * kTile;
  std::uint32_t num_rows = args.num_rows;
  if (args.groups.offsets != nullptr) {
    const cuda::GroupTile tile =
        cuda::GroupTileOf<kTile>(args.groups, args.num_rows, cuda::BlockY());
    if (tile.group >= args.groups.count) return;
    weights = OfGroup(weights, args.groups, tile.group);
    if (bias != nullptr) bias += tile.group * args.groups.bias_distance;
    m0 = tile.begin;
    num_rows = tile.end;
  }
  float total[kRowsPerThread] = {};
  float part[kRowsPerThread] = {};
  for (std::uint32_t k0 = 0; k0 < args.k; k0 += kTile) {
    LoadTile(w_tile, weights, args.k, n0, args.n, k0, args.k);
    LoadTile(x_tile, args.x, args.x_stride, m0, num_rows, k0, args.k, args.groups);
    cuda::SyncBlock();
    // Adding zeros beyond K would turn a sum of -0 into +0, so the loop ends at K.
    const std::uint32_t inputs = args.k - k0 < kTile ? args.k - k0 : kTile;
    for (std::uint32_t i = 0; i < inputs; ++i) {
      const float w = w_tile[feature * kPitch + i];
#pragma unroll
      for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
        part[r] = cuda::Fma(x_tile[(first_row + r) * kPitch + i], w, part[r]);
      }
    }
    cuda::SyncBlock();
    if ((k0 + kTile) % internal::kLinearPart == 0 || k0 + kTile >= args.k) {
#pragma unroll
      for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
        total[r] = cuda::Add(total[r], part[r]);
        part[r] = 0;
      }
    }
  }
  const std::uint32_t n = n0 + feature;
#pragma unroll
  for (std::uint32_t r = 0; r < kRowsPerThread; ++r) {
    const std::int64_t m = m0 + first_row + r;
    if (n >= args.n || m >= num_rows) continue;
    float y = total[r];
    if (bias != nullptr) y = cuda::Add(y, bias[n]);
    if (args.residual != nullptr) y = cuda::Add(y, args.residual[m * args.residual_stride + n]);
    if (args.y_is_bf16) {
      static_cast<BF16*>(args.y)[m * args.y_stride + n] = BF16::FromFloat(y);
    } else {
      static_cast<float*>(args.y)[m * args.y_stride + n] = y;
    }
  }
}

struct OrderArgs {
  const std::byte* x;
  const std::uint32_t* order;  // [k]
  std::byte* y;                // [rows, k]
  std::int64_t x_stride;
  std::uint32_t k;
  cuda::RowGroups groups;  // data_distance is the distance between consecutive permutations
};

template <typename T>
__global__ void __launch_bounds__(kThreads) OrderInputsKernel(const OrderArgs args) {
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::uint32_t j = cuda::BlockX() * kThreads + cuda::ThreadIndex();
  if (j >= args.k) return;
  const std::int64_t row = cuda::BlockY();
  const std::int64_t from = cuda::InputRow(args.groups, cuda::BlockY());
  const std::uint32_t* order = args.order;
  if (args.groups.offsets != nullptr) {
    order = OfGroup(order, args.groups, cuda::GroupOfRow(args.groups, cuda::BlockY()));
  }
  reinterpret_cast<T*>(args.y)[row * args.k + j] =
      reinterpret_cast<const T*>(args.x)[from * args.x_stride + order[j]];
}

// Launches the kernel with weights `w`. `groups` has no offsets if all rows have the same weights.
template <typename X, typename W>
absl::Status LaunchScalar(const CudaContext& context, const LinearParams& params,
                          const cuda::RowGroups& groups, W w) {
  const PackedLinear& weight = *params.weight;
  const ScalarArgs<X, W> args{.x = params.x.as<X>(),
                              .w = w,
                              .bias = params.bias,
                              .residual = params.residual,
                              .y = params.y.data(),
                              .x_stride = params.x_stride,
                              .residual_stride = params.residual_stride,
                              .y_stride = params.y_stride,
                              .n = weight.n(),
                              .k = weight.k(),
                              .num_rows = params.num_rows,
                              .y_is_bf16 = params.y.dtype() == DType::kBF16,
                              .groups = groups};
  const bool grouped = groups.offsets != nullptr;
  return cuda::Launch(
      context, grouped ? "grouped_linear_scalar" : "linear_scalar", LinearScalarKernel<X, W>,
      {.blocks_x = (weight.n() + kTile - 1) / kTile,
       .blocks_y = grouped ? cuda::MaxGroupTiles(params.num_rows, groups.count, kTile)
                           : (params.num_rows + kTile - 1) / kTile,
       .threads = kThreads,
       .shared_bytes = 2 * kTile * kPitch * sizeof(float),
       .programmatic = true},
      args);
}

CodedWeights CodedOf(const PackedLinear& weight) {
  const auto* const scales = static_cast<const std::byte*>(weight.scales());
  const std::byte* const zeros =
      weight.has_min() ? scales + cuda::LinearZerosAt(weight.n(), weight.k(), weight.group())
                       : nullptr;
  return {.codes = static_cast<const std::uint8_t*>(weight.data()),
          .scales = scales,
          .zeros = reinterpret_cast<const std::uint8_t*>(zeros),
          .n = weight.n(),
          .k = weight.k(),
          .group = weight.group(),
          .format = weight.format(),
          .scale_dtype = weight.dtype()};
}

absl::Status DispatchScalar(const CudaContext& context, const LinearParams& params,
                            const cuda::RowGroups& groups) {
  const DType x = params.x.dtype();
  const DType w = params.weight->dtype();
  const void* const data = params.weight->data();
  if (params.weight->format() != WeightFormat::kPlain) {
    return LaunchScalar<float>(context, params, groups, CodedOf(*params.weight));
  }
  const auto* const bf16 = static_cast<const BF16*>(data);
  if (x == DType::kBF16 && w == DType::kBF16) {
    return LaunchScalar<BF16>(context, params, groups, bf16);
  }
  if (x == DType::kF32 && w == DType::kF32) {
    return LaunchScalar<float>(context, params, groups, static_cast<const float*>(data));
  }
  if (x == DType::kF32 && w == DType::kBF16) {
    return LaunchScalar<float>(context, params, groups, bf16);
  }
  if (x == DType::kF32 && w == DType::kF16) {
    return LaunchScalar<float>(context, params, groups, static_cast<const F16*>(data));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("linear has x ", DTypeName(x), " and weights ", DTypeName(w),
                   ", supported are f32 by f32, bf16 or f16, and bf16 by bf16"));
}

absl::Status LaunchOrder(const CudaContext& context, const OrderArgs& args, DType dtype,
                         std::uint32_t num_rows) {
  return cuda::Launch(context, "order_inputs",
                      dtype == DType::kBF16 ? OrderInputsKernel<BF16> : OrderInputsKernel<float>,
                      {.blocks_x = (args.k + kThreads - 1) / kThreads,
                       .blocks_y = num_rows,
                       .threads = kThreads,
                       .shared_bytes = 0,
                       .programmatic = true},
                      args);
}

}  // namespace

namespace internal {

absl::Status LinearScalarCuda(const CudaContext& context, const LinearParams& params) {
  return DispatchScalar(context, params, {});
}

absl::Status GroupedLinearScalarCuda(const CudaContext& context,
                                     const GroupedLinearParams& params) {
  return DispatchScalar(context,
                        {.x = params.x,
                         .weight = params.weights.first,
                         .bias = params.weights.bias,
                         .y = params.y,
                         .x_stride = params.x_stride,
                         .y_stride = params.y_stride,
                         .num_rows = params.num_rows},
                        cuda::RowGroupsOf(params));
}

absl::Status PermuteInputsCuda(const CudaContext& context, const LinearParams& params, FloatPtr y) {
  const PackedLinear& weight = *params.weight;
  const OrderArgs args{.x = static_cast<const std::byte*>(params.x.data()),
                       .order = weight.act_order(),
                       .y = static_cast<std::byte*>(y.data()),
                       .x_stride = params.x_stride,
                       .k = weight.k(),
                       .groups = {}};
  return LaunchOrder(context, args, params.x.dtype(), params.num_rows);
}

absl::Status GroupedPermuteInputsCuda(const CudaContext& context, const GroupedLinearParams& params,
                                      FloatPtr y) {
  const PackedLinear& weight = *params.weights.first;
  OrderArgs args{.x = static_cast<const std::byte*>(params.x.data()),
                 .order = weight.act_order(),
                 .y = static_cast<std::byte*>(y.data()),
                 .x_stride = params.x_stride,
                 .k = weight.k(),
                 .groups = cuda::RowGroupsOf(params)};
  args.groups.data_distance = params.weights.act_order_distance;
  return LaunchOrder(context, args, params.x.dtype(), params.num_rows);
}

}  // namespace internal
}  // namespace quire::kernels
