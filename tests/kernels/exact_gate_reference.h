#pragma once

// The gated product in double precision, computed from its formula.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elementwise/activation.h"

namespace quire::kernels {

inline double Activated(const GateShape& shape, double x) {
  switch (shape.act) {
    case Activation::kSilu:
      return x / (1 + std::exp(-double{shape.alpha} * x));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

inline double ExactProduct(const GateShape& shape, double gate, double up) {
  if (shape.limit > 0) {
    gate = std::min(gate, double{shape.limit});
    up = std::min(std::max(up, -double{shape.limit}), double{shape.limit});
  }
  return Activated(shape, gate) * (up + shape.up_offset);
}

}  // namespace quire::kernels
