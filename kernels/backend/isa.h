#pragma once

// Which of the compiled instruction sets the kernels of this process use.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/linear/int_linear.h"

namespace quire::kernels::internal {

// Place: under backend.h, which documents both.
absl::string_view ChosenIsa();
absl::Status ChooseIsa(absl::string_view isa);
// The integer matrix kernels of the chosen instruction set.
const IntLinearKernels& ChosenIntLinear();

}  // namespace quire::kernels::internal
