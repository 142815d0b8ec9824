#pragma once

// Chooses the integer matrix kernels for the instruction set of this process.

#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {

// Returns the kernels of ChosenLevel(), or of the next lower level that this machine supports.
const IntLinearKernels& ChosenIntLinear();

}  // namespace quire::kernels::internal
