// Quantizes rows of x to e4m3, one block per row. A block first finds the largest magnitude and
// then quantizes the values. It reads the row twice, the second time from the cache, because long
// rows do not fit in registers. Per bf16 element 2 bytes are read from memory, and 1 byte of e4m3
// or 2 bytes of bf16 are written.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/thread.cuh"
#include "kernels/linear/fp8_rows.h"
#include "kernels/linear/linear.h"

namespace quire::kernels {
namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kWarps = kThreads / cuda::kWarpSize;

// Elements per load of a thread: 16 bytes of bf16, or one f32. bf16 rows are 16-byte aligned, f32
// rows need not be.
template <typename T>
inline constexpr std::uint32_t kWidth = sizeof(T) == 2 ? 8 : 1;

struct RoundArgs {
  const std::byte* x;
  std::byte* y;           // [rows, k] in x's type, e4m3 value times scale; null: writes `codes`
  std::uint8_t* codes;    // [rows, k], rows code_stride apart
  float* scales;          // [rows], scales of `codes`
  std::int64_t x_stride;  // elements
  std::int64_t code_stride;
  std::uint32_t k;
  const std::uint32_t* x_rows;  // row m is x[x_rows[m]]; null: x[m]
};

template <std::uint32_t kCount>
struct Floats {
  float at[kCount];
};

__device__ __forceinline__ Floats<8> Load(const BF16* from) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
  Floats<8> values;
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const float2 two = cuda::UnpackBF16(pairs[i]);
    values.at[2 * i] = two.x;
    values.at[2 * i + 1] = two.y;
  }
  return values;
}
__device__ __forceinline__ Floats<1> Load(const float* from) {
  return {{*from}};
}

__device__ __forceinline__ void Store(BF16* to, const Floats<8>& v) {
  *reinterpret_cast<uint4*>(to) = {
      cuda::PackBF16(v.at[0], v.at[1]), cuda::PackBF16(v.at[2], v.at[3]),
      cuda::PackBF16(v.at[4], v.at[5]), cuda::PackBF16(v.at[6], v.at[7])};
}
__device__ __forceinline__ void Store(float* to, const Floats<1>& v) {
  *to = v.at[0];
}

template <std::uint32_t kCount>
__device__ __forceinline__ void StoreCodes(std::uint8_t* to, const std::uint8_t (&codes)[kCount]) {
  if constexpr (kCount == 8) {
    std::uint32_t words[2] = {};
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i) {
      words[i / 4] |= static_cast<std::uint32_t>(codes[i]) << (8 * (i % 4));
    }
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    *to = codes[0];
  }
}

// Returns the maximum over the block, in every thread.
__device__ __forceinline__ std::uint32_t BlockMax(std::uint32_t largest) {
  auto* const warp_maxima = reinterpret_cast<std::uint32_t*>(cuda::SharedMemory16());
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    const std::uint32_t other = cuda::ShuffleXor(largest, mask);
    largest = other > largest ? other : largest;
  }
  const std::uint32_t warp = cuda::Warp();
  if (cuda::Lane() == 0) warp_maxima[warp] = largest;
  cuda::SyncBlock();
#pragma unroll
  for (std::uint32_t i = 0; i < kWarps; ++i) {
    largest = warp_maxima[i] > largest ? warp_maxima[i] : largest;
  }
  return largest;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) Fp8RowsKernel(const RoundArgs args) {
  constexpr std::uint32_t kOwn = kWidth<T>;
  cuda::DependencyLaunch();
  cuda::DependencyWait();
  const std::int64_t row = cuda::BlockX();
  const std::int64_t from = args.x_rows == nullptr ? row : std::int64_t{args.x_rows[row]};
  const T* const x = reinterpret_cast<const T*>(args.x) + from * args.x_stride;
  const std::uint32_t first = cuda::ThreadIndex() * kOwn;
  std::uint32_t largest = 0;
  for (std::uint32_t at = first; at < args.k; at += kThreads * kOwn) {
    const Floats<kOwn> values = Load(x + at);
#pragma unroll
    for (std::uint32_t i = 0; i < kOwn; ++i) {
      const std::uint32_t bits = MagnitudeBits(values.at[i]);
      largest = bits > largest ? bits : largest;
    }
  }
  const float scale = Fp8RowScale(BlockMax(largest));
  const float inverse = InverseFp8RowScale(scale);
  for (std::uint32_t at = first; at < args.k; at += kThreads * kOwn) {
    Floats<kOwn> values = Load(x + at);
    std::uint8_t codes[kOwn];
#pragma unroll
    for (std::uint32_t i = 0; i < kOwn; ++i) {
      codes[i] = cuda::FloatToE4M3(cuda::Mul(values.at[i], inverse));
      values.at[i] = cuda::Mul(F8E4M3{codes[i]}.ToFloat(), scale);
    }
    if (args.y == nullptr) {
      StoreCodes(args.codes + row * args.code_stride + at, codes);
    } else {
      Store(reinterpret_cast<T*>(args.y) + row * args.k + at, values);
    }
  }
  if (args.y == nullptr && cuda::ThreadIndex() == 0) args.scales[row] = scale;
}

absl::Status LaunchRound(const CudaContext& context, const RoundArgs& args, DType dtype,
                         std::uint32_t num_rows) {
  return cuda::Launch(context, "fp8_rows",
                      dtype == DType::kBF16 ? Fp8RowsKernel<BF16> : Fp8RowsKernel<float>,
                      {.blocks_x = num_rows,
                       .threads = kThreads,
                       .shared_bytes = kWarps * sizeof(std::uint32_t),
                       .programmatic = true},
                      args);
}

// Checks the alignment of bf16 rows, which are read 16 bytes at a time.
absl::Status CheckAligned(const internal::RowsToQuantize& rows) {
  const auto at = reinterpret_cast<std::uintptr_t>(rows.x.data());
  const bool has_more = rows.num_rows > 1 || rows.x_rows != nullptr;
  if (rows.x.is_f32() ||
      (at % 16 == 0 && rows.k % 8 == 0 && (rows.x_stride % 8 == 0 || !has_more))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rows of ", rows.k, " inputs to quantize start at byte ", at % 16, " of 16, ",
                   rows.x_stride, " elements apart, rows must be 16-byte aligned"));
}

}  // namespace

namespace internal {

absl::Status RoundFp8RowsCuda(const CudaContext& context, const RowsToQuantize& rows, FloatPtr y) {
  QUIRE_RETURN_IF_ERROR(CheckAligned(rows));
  return LaunchRound(context,
                     {.x = static_cast<const std::byte*>(rows.x.data()),
                      .y = static_cast<std::byte*>(y.data()),
                      .codes = nullptr,
                      .scales = nullptr,
                      .x_stride = rows.x_stride,
                      .code_stride = 0,
                      .k = rows.k,
                      .x_rows = rows.x_rows},
                     rows.x.dtype(), rows.num_rows);
}

absl::Status QuantizeFp8RowsCuda(const CudaContext& context, const RowsToQuantize& rows,
                                 const QuantizedFp8Rows& to) {
  QUIRE_RETURN_IF_ERROR(CheckAligned(rows));
  return LaunchRound(context,
                     {.x = static_cast<const std::byte*>(rows.x.data()),
                      .y = nullptr,
                      .codes = to.codes,
                      .scales = to.scales,
                      .x_stride = rows.x_stride,
                      .code_stride = to.stride,
                      .k = rows.k,
                      .x_rows = rows.x_rows},
                     rows.x.dtype(), rows.num_rows);
}

}  // namespace internal
}  // namespace quire::kernels
