#pragma once

// The activation of a feed-forward block and what is around it: for GatedProduct, and for a product
// that gates by itself.

#include <cstdint>

namespace quire::kernels {

enum class Activation : std::uint8_t {
  kSilu,      // x / (1 + e^(-alpha x))
  kGeluTanh,  // 0.5 x (1 + tanh(0.7978845608 (x + 0.044715 x^3)))
  kGeluErf,   // 0.5 x (1 + erf(x / sqrt 2))
  kRelu2,     // max(x, 0)^2
};

// How a gate and an up value become one: act(gate) * up, or with any of the others set
//   g = min(gate, limit), u = clamp(up, -limit, limit), act(g) * (u + up_offset).
struct GateShape {
  Activation act = Activation::kSilu;
  float alpha = 1;  // of kSilu
  float limit = 0;  // 0: none
  float up_offset = 0;
  friend bool operator==(const GateShape&, const GateShape&) = default;
};

}  // namespace quire::kernels
