#pragma once

// Computes act(gate) * up on the device. kSilu and kGeluErf give the bits of CPU kernels with fused
// multiply-add.

#include "kernels/backend/exact_gate.h"
#include "kernels/backend/exact_math.h"
#include "kernels/backend/gate_shape.h"
#include "kernels/cuda/convert.cuh"

namespace quire::kernels::cuda {

// The product for GateShape{}: plain silu.
struct SiluProduct {
  __device__ __forceinline__ float operator()(float gate, float up) const {
    const float silu = Div(gate, Add(1.0f, ExactExp(-gate)));
    return Mul(silu, up);
  }
};

// The product for any GateShape. Every operation is rounded, and comparisons are written so that
// NaN is kept.
struct ShapedProduct {
  GateShape shape;

  __device__ __forceinline__ float Activate(float x) const {
    switch (shape.act) {
      case Activation::kSilu:
        return Div(x, Add(1.0f, ExactExp(Mul(-shape.alpha, x))));
      case Activation::kGeluTanh: {
        const float cube = Mul(Mul(Mul(0.044715f, x), x), x);
        const float tanh = ExactTanh(Mul(0.7978845608f, Add(x, cube)));
        return Mul(Mul(0.5f, x), Add(1.0f, tanh));
      }
      case Activation::kGeluErf: {
        const float erf = ExactErf(Mul(x, 0.7071067812f));
        return Mul(Mul(0.5f, x), Add(1.0f, erf));
      }
      case Activation::kRelu2:
        return x > 0 ? Mul(x, x) : Mul(x, 0.0f);
    }
    return 0;
  }
  __device__ __forceinline__ float operator()(float gate, float up) const {
    if (shape.limit > 0) {
      gate = gate > shape.limit ? shape.limit : gate;
      up = up > shape.limit ? shape.limit : up < -shape.limit ? -shape.limit : up;
    }
    return Mul(Activate(gate), Add(up, shape.up_offset));
  }
};

}  // namespace quire::kernels::cuda
