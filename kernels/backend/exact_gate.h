#pragma once

// tanh and erf for gates and soft caps, with the same bits on host and device (see exact_math.h).
// They use the polynomials of cpu/simd_math-inl.h with explicit fused multiply-adds.

#include <cmath>

#include "base/host_device.h"
#include "kernels/backend/exact_math.h"

namespace quire::kernels {

// Returns tanh(x) within 3 units in the last place; NaN for NaN. Uses x + x^3 P(x^2) for |x| <
// 0.625, where 1 - 2 / (e^2x + 1) would lose digits.
QUIRE_HOST_DEVICE inline float ExactTanh(float x) {
  const float size = fabsf(x);
  if (size < 0.625f) {
    const float z = x * x;
    float p = -6.09671418e-3f;
    p = fmaf(p, z, 2.09971797e-2f);
    p = fmaf(p, z, -5.38509078e-2f);
    p = fmaf(p, z, 1.33327693e-1f);
    p = fmaf(p, z, -3.33333284e-1f);
    return fmaf(x * z, p, x);
  }
  const float power = ExactExp(size + size);
  return copysignf(1.0f - 2.0f / (power + 1.0f), x);
}

// Returns erf(x) within 4 units in the last place; NaN for NaN. Uses x P(x^2) for |x| < 1, and 1 -
// e^Q(|x|) with the sign of x for larger |x|. From |x| = 4 on, the result is 1 or -1.
QUIRE_HOST_DEVICE inline float ExactErf(float x) {
  const float size = fabsf(x);
  if (size < 1.0f) {
    const float z = x * x;
    float p = -5.64805989e-4f;
    p = fmaf(p, z, 4.92176181e-3f);
    p = fmaf(p, z, -2.67150551e-2f);
    p = fmaf(p, z, 1.12803169e-1f);
    p = fmaf(p, z, -3.76123428e-1f);
    p = fmaf(p, z, 1.12837911f);
    return x * p;
  }
  // The comparison is false for NaN, so NaN is kept.
  const float clamped = size > 4.0f ? 4.0f : size;
  float q = -1.32723617e-5f;
  q = fmaf(q, clamped, 3.16937017e-4f);
  q = fmaf(q, clamped, -3.43235140e-3f);
  q = fmaf(q, clamped, 2.26047728e-2f);
  q = fmaf(q, clamped, -1.03281118e-1f);
  q = fmaf(q, clamped, -6.39141262e-1f);
  q = fmaf(q, clamped, -1.12589359f);
  q = fmaf(q, clamped, -7.65897799e-4f);
  return copysignf(1.0f - ExactExp(q), x);
}

}  // namespace quire::kernels
