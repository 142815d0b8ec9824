// Memory traffic per element: 8 bytes in and 4 out. A group stays in L1 between the passes.
// kSiluThenNorm has three passes, kSigmoid one, and the other orders two. The exp and the division
// of the gate dominate the time.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/recurrent/gate_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/recurrent/gate_norm_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/recurrent/recurrent_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Pointers to one group: its input, gate, weights and result.
struct Group {
  const float* x;
  const float* gate;
  const float* weight;
  float* y;
};

template <GateOrder kOrder>
HWY_INLINE void GateGroup(const Group& group, std::size_t columns, float epsilon) {
  const DF d;
  VF scale = hn::Zero(d);
  if constexpr (kOrder == GateOrder::kSiluThenNorm) {
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const std::size_t count = columns - i;
      const VF gated = hn::Mul(LoadSome(group.x + i, count), Silu(LoadSome(group.gate + i, count)));
      StoreSome(gated, group.y + i, count);
    }
  }
  const float* const x = kOrder == GateOrder::kSiluThenNorm ? group.y : group.x;
  if constexpr (kOrder != GateOrder::kSigmoid) {
    const float mean = SumOfSquares(x, columns) / static_cast<float>(columns);
    scale = hn::Set(d, 1.0f / std::sqrt(mean + epsilon));
  }
  for (std::size_t i = 0; i < columns; i += kLanes) {
    const std::size_t count = columns - i;
    VF value = LoadSome(x + i, count);
    if constexpr (kOrder != GateOrder::kSigmoid) {
      value = hn::Mul(hn::Mul(value, scale), LoadSome(group.weight + i, count));
    }
    if constexpr (kOrder == GateOrder::kNormThenSilu) {
      value = hn::Mul(value, Silu(LoadSome(group.gate + i, count)));
    } else if constexpr (kOrder != GateOrder::kSiluThenNorm) {
      value = hn::Mul(value, Sigmoid(LoadSome(group.gate + i, count)));
    }
    StoreSome(value, group.y + i, count);
  }
}

template <GateOrder kOrder>
void GateRows(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    for (std::uint32_t g = 0; g < params.groups; ++g) {
      const std::int64_t at = std::int64_t{g} * params.columns;
      GateGroup<kOrder>({.x = params.x.f32() + m * params.x_stride + at,
                         .gate = params.gate.f32() + m * params.gate_stride + at,
                         .weight = params.has_group_weights ? params.weight + at : params.weight,
                         .y = params.y.f32() + m * params.y_stride + at},
                        params.columns, params.epsilon);
    }
  }
}

void GateNormRows(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  switch (params.order) {
    case GateOrder::kNormThenSilu:
      return GateRows<GateOrder::kNormThenSilu>(params, row_begin, row_end);
    case GateOrder::kNormThenSigmoid:
      return GateRows<GateOrder::kNormThenSigmoid>(params, row_begin, row_end);
    case GateOrder::kSiluThenNorm:
      return GateRows<GateOrder::kSiluThenNorm>(params, row_begin, row_end);
    case GateOrder::kSigmoid:
      return GateRows<GateOrder::kSigmoid>(params, row_begin, row_end);
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(GateNormRows);

namespace internal {

void GateNormSimd(const GateNormParams& params, std::int64_t row_begin, std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(GateNormRows)(params, row_begin, row_end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
