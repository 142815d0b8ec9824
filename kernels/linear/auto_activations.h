#pragma once

// Chooses the activations that CpuActivations::kAuto means for the weights of a model.

#include "kernels/backend/backend.h"

namespace quire::kernels {

// Replaces kAuto by the activations for the chosen instruction set and weights. Returns other
// values unchanged. `weights_are_bf16` is true if every matrix in memory is unquantized bf16.
//
// With AMX, kAuto means kBF16 for all weights. With vdpbf16ps, it means kBF16 for bf16 weights:
// integer weights are faster with kInt8, and f32 or f16 weights would be rounded. Otherwise it
// means kInt8.
CpuActivations ResolveCpuActivations(CpuActivations activations, bool weights_are_bf16);

}  // namespace quire::kernels
