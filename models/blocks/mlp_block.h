#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend/float_ptr.h"
#include "kernels/elementwise/activation.h"
#include "models/blocks/step_context.h"
#include "models/config/layer_spec.h"
#include "models/weights/weights.h"

namespace quire::models {

// Returns the activation parameters of an MLP for GatedProduct: function, clamp and offset.
kernels::GateShape GateShapeOf(const MlpSpec& mlp);

// Writes act(first half) * second half to the first half of each row, or act(row) without a gate.
absl::Status Activate(const StepContext& step, const MlpSpec& mlp, kernels::FloatPtr y,
                      std::uint32_t num_rows);

// Input and output of a gated projection.
struct GatedRows {
  kernels::ConstFloatPtr x;  // [num_rows, columns of the weights]
  kernels::FloatPtr y;       // [num_rows, MlpSpec::inner_columns()]
  std::uint32_t num_rows;
};

// Writes act(gate(x)) * up(x) to the first half of the rows of y, and may overwrite the second
// half. If kernels::CanFuseGate is true, this is one fused operation. Without a gate, writes
// act(up(x)) to y.
absl::Status GatedProjection(const StepContext& step, const MlpSpec& mlp,
                             const LinearWeights& gate_up, const GatedRows& rows);

// Adds the branch of MlpSpec, applied to norm(x), to the residual stream (branch.h). Uses the
// buffers normed and gate_up. REQUIRES: CheckSupported is OK.
absl::Status MlpBlock(const StepContext& step, const LayerSpec& layer, const LayerWeights& weights);

}  // namespace quire::models
