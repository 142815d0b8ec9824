#pragma once

// A warp loads one head into registers, normalizes it, rotates it in f32 and writes it into its
// page. A head consists of pieces of 128 columns, and a lane owns four adjacent columns of each
// piece. The lane also reads the other column of each of its rope pairs (from L1). A head may
// therefore be written back in place only after all lanes have read. A quantized page has one scale
// per head, so a butterfly reduction over the warp computes the maximum magnitude.

#include <cstdint>
#include <limits>

#include "base/vec.h"
#include "cache_manager/views/kv_quantize.h"
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/thread.cuh"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/rope/rope.h"

namespace quire::kernels::kv_head {

inline constexpr std::uint32_t kColumns = 4;  // adjacent columns per lane

// The columns of a head, four per lane and piece.
template <std::uint32_t kPieces>
using HeadValues = float[kPieces][kColumns];
template <std::uint32_t kPieces>
inline constexpr std::uint32_t kMaxHeadSize = kPieces* kColumns* cuda::kWarpSize;

// RopeParams without the fields that describe rows.
struct Rotation {
  const float* cosines;
  const float* sines;
  std::uint32_t size;  // 0: no rotation
  std::uint32_t first;
  RopeStyle style;
};

// RMSNorm that is applied to a head before rotation.
struct HeadNorm {
  const float* weight;  // [head_size]; null: no norm
  float epsilon;
};

__device__ __forceinline__ std::uint32_t FirstColumn(std::uint32_t piece) {
  return kColumns * (cuda::Lane() + piece * cuda::kWarpSize);
}

// Returns 1 / rms of a head, in the reduction order of GroupNormKernel (kernels/norm).
template <std::uint32_t kPieces>
__device__ __forceinline__ float InverseRms(const HeadValues<kPieces>& x, std::uint32_t head_size,
                                            float epsilon) {
  float sum = 0.0f;
#pragma unroll
  for (std::uint32_t j = 0; j < kPieces; ++j) {
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) sum = cuda::Fma(x[j][c], x[j][c], sum);
  }
#pragma unroll
  for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
    sum = cuda::Add(sum, cuda::ShuffleXor(sum, mask));
  }
  const float mean = cuda::Div(sum, static_cast<float>(head_size));
  return cuda::Div(1.0f, cuda::Sqrt(cuda::Add(mean, epsilon)));
}

// Reads columns of a head, normalized and rounded to the head's type if there is a norm.
template <typename T>
struct NormedHead {
  const T* head;
  const float* weight;  // null: no norm
  float inverse;

  __device__ __forceinline__ float Norm(float x, std::uint32_t d) const {
    if (weight == nullptr) return x;
    return ToFloat(FromFloat<T>(cuda::Mul(cuda::Mul(x, inverse), weight[d])));
  }
  __device__ __forceinline__ float At(std::uint32_t d) const { return Norm(ToFloat(head[d]), d); }
};

// Returns column d of the head, rotated; `own` is its value before rotation.
template <typename T>
__device__ __forceinline__ float Rotated(const Rotation& rotation, const NormedHead<T>& head,
                                         std::int64_t row, std::uint32_t d, float own) {
  const std::uint32_t i = d - rotation.first;  // wraps around to a large value if d < first
  const std::uint32_t pairs = rotation.size / 2;
  if (i >= rotation.size) return own;
  const bool half = rotation.style == RopeStyle::kHalf;
  const bool second = half ? i >= pairs : i % 2 != 0;
  const std::uint32_t distance = half ? pairs : 1;
  const std::uint32_t pair = half ? (second ? i - pairs : i) : i / 2;
  const float other = head.At(second ? d - distance : d + distance);
  const std::int64_t at = row * pairs + pair;
  const float other_term = cuda::Mul(other, rotation.sines[at]);
  const float own_term = cuda::Mul(own, rotation.cosines[at]);
  return second ? cuda::Add(own_term, other_term) : cuda::Sub(own_term, other_term);
}

// Loads a head of row `row`, normalizes it, and rotates it if `rotate` is true. Columns beyond the
// head are zeros.
template <std::uint32_t kPieces, typename T>
__device__ __forceinline__ void ReadHead(const Rotation& rotation, const T* head,
                                         std::uint32_t head_size, std::int64_t row, bool rotate,
                                         HeadValues<kPieces>& x, const HeadNorm& norm = {}) {
#pragma unroll
  for (std::uint32_t j = 0; j < kPieces; ++j) {
    const std::uint32_t d = FirstColumn(j);
    Vec<T, kColumns> own{};
    if (d < head_size) own = cache::LoadVector<kColumns>(head + d);
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) x[j][c] = ToFloat(own.lane[c]);
  }
  NormedHead<T> normed{head, norm.weight, 1.0f};
  if (norm.weight != nullptr) normed.inverse = InverseRms<kPieces>(x, head_size, norm.epsilon);
#pragma unroll
  for (std::uint32_t j = 0; j < kPieces; ++j) {
    const std::uint32_t d = FirstColumn(j);
    if (d >= head_size) continue;
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) {
      x[j][c] = normed.Norm(x[j][c], d + c);
      if (rotate) x[j][c] = Rotated(rotation, normed, row, d + c, x[j][c]);
    }
  }
}

struct PagePlace {
  std::uint32_t row;   // batch row
  std::uint32_t head;  // KV head
  std::uint32_t token;
};

template <std::uint32_t kPieces, typename E>
__device__ __forceinline__ void StoreHead(const KvView<E>& view, const PagePlace& place,
                                          const HeadValues<kPieces>& x) {
  float scale = 1.0f;
  bool zero = false;
  if constexpr (kQuantizedKv<E>) {
    // Computes the scale of cache::QuantizeGroup. The maximum does not depend on order.
    float amax = 0.0f;
    bool finite = true;
#pragma unroll
    for (std::uint32_t j = 0; j < kPieces; ++j) {
#pragma unroll
      for (std::uint32_t c = 0; c < kColumns; ++c) {
        finite = finite && fabsf(x[j][c]) <= std::numeric_limits<float>::max();
        amax = cuda::Max(amax, fabsf(x[j][c]));
      }
    }
#pragma unroll
    for (std::uint32_t mask = cuda::kWarpSize / 2; mask > 0; mask /= 2) {
      amax = cuda::Max(amax, cuda::ShuffleXor(amax, mask));
    }
    zero = cuda::AnyLane(!finite) || amax == 0.0f;
    if (!zero) scale = cuda::Max(cuda::Div(amax, cache::kQuantizedMax<E>), 0x1p-126f);
    if (cuda::Lane() == 0) {
      view.template store_scale<1>(place.row, place.head, place.token, 0, {scale});
    }
  }
#pragma unroll
  for (std::uint32_t j = 0; j < kPieces; ++j) {
    const std::uint32_t d = FirstColumn(j);
    if (d >= view.head_size()) break;
    Vec<E, kColumns> out{};
#pragma unroll
    for (std::uint32_t c = 0; c < kColumns; ++c) {
      if constexpr (kQuantizedKv<E>) {
        if (!zero) out.lane[c] = cache::QuantizeValue<E>(x[j][c], scale);
      } else {
        out.lane[c] = FromFloat<E>(x[j][c]);
      }
    }
    view.template store<kColumns>(place.row, place.head, place.token, d, out);
  }
}

}  // namespace quire::kernels::kv_head
