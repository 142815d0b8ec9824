#pragma once

// The activation of a feed-forward block and its parameters, used by GatedProduct and by matrix
// products with a fused gate.

#include <cstdint>

namespace quire::kernels {

enum class Activation : std::uint8_t {
  kSilu,      // x / (1 + e^(-alpha x))
  kGeluTanh,  // 0.5 x (1 + tanh(0.7978845608 (x + 0.044715 x^3)))
  kGeluErf,   // 0.5 x (1 + erf(x / sqrt 2))
  kRelu2,     // max(x, 0)^2
};

// Parameters of the gated product act(gate) * up. If limit or up_offset is set, the product is
// act(g) * (u + up_offset) with g = min(gate, limit) and u = clamp(up, -limit, limit).
struct GateShape {
  Activation act = Activation::kSilu;
  float alpha = 1;  // used by kSilu
  float limit = 0;  // 0: no limit
  float up_offset = 0;
  friend bool operator==(const GateShape&, const GateShape&) = default;
};

}  // namespace quire::kernels
