// The vector code of the gated product. It reads 8 bytes and writes 4 per element. The exp and the
// division dominate the time, with about 30 instructions per register (60 for GELU with erf). The
// tail of a row is copied to a padded buffer, so that every element is computed by the same exp.

#include <cstddef>
#include <cstdint>

#include "kernels/elementwise/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/activation_simd.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::HWY_NAMESPACE {

// Returns act(x). With kShaped, alpha may differ from 1.
template <Activation kAct, bool kShaped>
HWY_INLINE VF Activate(VF x, VF alpha) {
  const DF d;
  if constexpr (kAct == Activation::kSilu) {
    const VF scaled = kShaped ? hn::Mul(alpha, x) : x;
    return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(hn::Neg(scaled))));
  } else if constexpr (kAct == Activation::kGeluTanh) {
    // 0.5 (1 + tanh u) is computed as 1 / (1 + e^-2u), which is accurate where the tanh is near -1.
    const VF cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x)), x, x);
    const VF power = Exp(hn::Mul(hn::Set(d, -2.0f * 0.7978845608f), cubic));
    return hn::Div(x, hn::Add(hn::Set(d, 1.0f), power));
  } else if constexpr (kAct == Activation::kGeluErf) {
    const VF error = Erf(hn::Mul(x, hn::Set(d, 0.7071067812f)));
    return hn::Mul(hn::Mul(hn::Set(d, 0.5f), x), hn::Add(hn::Set(d, 1.0f), error));
  } else {
    // The comparison is false for NaN, so NaN is kept.
    const VF positive = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    return hn::Mul(positive, positive);
  }
}

// Returns the gated product. With kShaped, applies alpha, limit and up_offset.
template <Activation kAct, bool kShaped>
HWY_INLINE VF Product(const GateShape& shape, VF gate, VF up) {
  const DF d;
  if constexpr (kShaped) {
    if (shape.limit > 0) {
      const VF high = hn::Set(d, shape.limit);
      const VF low = hn::Set(d, -shape.limit);
      gate = hn::IfThenElse(hn::Gt(gate, high), high, gate);
      up = hn::IfThenElse(hn::Gt(up, high), high, up);
      up = hn::IfThenElse(hn::Lt(up, low), low, up);
    }
    up = hn::Add(up, hn::Set(d, shape.up_offset));
  }
  return hn::Mul(Activate<kAct, kShaped>(gate, hn::Set(d, shape.alpha)), up);
}

template <Activation kAct, bool kShaped>
void Rows(const GatedProductParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const DF d;
  const GateShape shape = params.shape;
  const bool has_up = !params.up.is_null();
  for (std::int64_t m = row_begin; m < row_end; ++m) {
    const float* const gate = params.gate.f32() + m * params.gate_stride;
    const float* const up = has_up ? params.up.f32() + m * params.up_stride : nullptr;
    float* const y = params.y.f32() + m * params.y_stride;
    const std::size_t columns = params.columns;
    std::size_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      const VF product = Product<kAct, kShaped>(shape, hn::LoadU(d, gate + i),
                                                has_up ? hn::LoadU(d, up + i) : hn::Set(d, 1.0f));
      hn::StoreU(product, d, y + i);
    }
    if (i == columns) continue;
    HWY_ALIGN float tail[2][kLanes] = {};
    for (std::size_t lane = 0; i + lane < columns; ++lane) {
      tail[0][lane] = gate[i + lane];
      tail[1][lane] = has_up ? up[i + lane] : 1.0f;
    }
    const VF product = Product<kAct, kShaped>(shape, hn::Load(d, tail[0]), hn::Load(d, tail[1]));
    hn::Store(product, d, tail[0]);
    for (std::size_t lane = 0; i + lane < columns; ++lane) y[i + lane] = tail[0][lane];
  }
}

template <Activation kAct>
void DispatchShape(const GatedProductParams& params, std::int64_t row_begin, std::int64_t row_end) {
  const GateShape& shape = params.shape;
  const bool shaped = shape.alpha != 1 || shape.limit != 0 || shape.up_offset != 0;
  (shaped ? Rows<kAct, true> : Rows<kAct, false>)(params, row_begin, row_end);
}

void GatedProductRows(const GatedProductParams& params, std::int64_t row_begin,
                      std::int64_t row_end) {
  switch (params.shape.act) {
    case Activation::kSilu:
      return DispatchShape<Activation::kSilu>(params, row_begin, row_end);
    case Activation::kGeluTanh:
      return DispatchShape<Activation::kGeluTanh>(params, row_begin, row_end);
    case Activation::kGeluErf:
      return DispatchShape<Activation::kGeluErf>(params, row_begin, row_end);
    case Activation::kRelu2:
      return DispatchShape<Activation::kRelu2>(params, row_begin, row_end);
  }
}

}  // namespace quire::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::kernels {

HWY_EXPORT(GatedProductRows);

namespace internal {

void GatedProductSimd(const GatedProductParams& params, std::int64_t row_begin,
                      std::int64_t row_end) {
  HWY_DYNAMIC_DISPATCH(GatedProductRows)(params, row_begin, row_end);
}

}  // namespace internal
}  // namespace quire::kernels
#endif  // HWY_ONCE
