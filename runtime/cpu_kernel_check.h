#pragma once

// Compares the CPU kernels of the chosen instruction set with their scalar references, on small
// random operands.
//
// Products and attention with bf16 activations, and integer products except on sse4, must match
// their references bitwise. Other kernels sum in another order, so a limited error is accepted.
// Every row of a product is computed in batches of several sizes. Outputs are filled with NaN
// before the kernel runs, and the gaps between output rows must still be NaN afterwards.
//
// Place:   below cpu_check.h, which runs it in a child process; above the ops.
// Threads: the calling thread computes everything.

#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/kernel_check.h"

namespace quire::kernels {
struct AttentionParams;
struct LinearParams;
struct RmsNormParams;
struct StateScanParams;
}  // namespace quire::kernels

namespace quire::runtime {

// The ops that are checked. Tests replace them to inject faults.
struct CheckedOps {
  // Uses the ops of kernels/: Linear, PagedAttention, RmsNorm and StateScan.
  CheckedOps();

  std::function<absl::Status(const kernels::Backend&, const kernels::LinearParams&)> linear;
  std::function<absl::Status(const kernels::Backend&, const kernels::AttentionParams&)> attention;
  std::function<absl::Status(const kernels::Backend&, const kernels::RmsNormParams&)> norm;
  std::function<absl::Status(const kernels::Backend&, const kernels::StateScanParams&)> scan;
};

// Receives a check before each run of its kernel, with the shape of that run, and once more when
// the check is finished.
using KernelCheckSink =
    absl::FunctionRef<void(const kernels::KernelCheck& check, bool is_finished)>;

// Runs all checks that the chosen instruction set supports. A check ends at its first fault.
void CheckCpuKernels(const CheckedOps& ops, KernelCheckSink sink);

}  // namespace quire::runtime
