#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/elementwise/activation.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// The activation, clamp and offset of an MLP, for GatedProduct.
kernels::GateShape GateShapeOf(const MlpSpec& mlp);

// In the first half of rows of 2 * intermediate: act(first half) * second half.
absl::Status Activate(const StepContext& step, const MlpSpec& mlp, kernels::FloatPtr y,
                      std::uint32_t num_rows);

// Rows on their way through gate and up.
struct GatedRows {
  kernels::ConstFloatPtr x;  // [num_rows, hidden]
  kernels::FloatPtr y;       // [num_rows, 2 * intermediate]
  std::uint32_t num_rows;
};

// act(gate(x)) * up(x) into the first half of the rows of y, whose second half may be overwritten:
// by the product itself where it takes a gate.
absl::Status GatedProjection(const StepContext& step, const MlpSpec& mlp,
                             const LinearWeights& gate_up, const GatedRows& rows);

// x joins down(act(gate(norm(x))) * up(norm(x))), as branch.h says. Uses normed and gate_up.
// REQUIRES: CheckBuilt.
absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
