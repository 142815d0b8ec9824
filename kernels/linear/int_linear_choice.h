#pragma once

// The integer matrix kernels of the instruction set that this process uses.

#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {

// Those of ChosenLevel(), or of the next level that has any on this machine.
const IntLinearKernels& ChosenIntLinear();

}  // namespace quire::kernels::internal
