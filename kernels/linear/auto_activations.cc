#include "kernels/linear/auto_activations.h"

#include "kernels/linear/bf16_linear.h"

namespace quire::kernels {

CpuActivations ResolveCpuActivations(CpuActivations activations, bool weights_are_bf16) {
  const bool uses_vdpbf16ps = internal::NeedsOrderedRows(internal::ChosenBf16Multiply());
  if (activations == CpuActivations::kAuto && uses_vdpbf16ps && weights_are_bf16) {
    return CpuActivations::kBF16;
  }
  return ResolveCpuActivations(activations);
}

}  // namespace quire::kernels
