#pragma once

// The result of comparing one kernel with its reference at one shape (the self-check at start).

#include <span>
#include <string>

namespace quire::kernels {

struct KernelCheck {
  std::string kernel;        // e.g. "bf16 product"
  std::string shape = {};    // e.g. "int4 g32, 9 x 256 x 1024"
  double error = 0;          // norm of the difference, divided by the norm of the reference
  double limit = 0;          // maximum allowed error; 0: all bits must be equal
  std::string fault = {};    // description of what is wrong; empty if the kernel passed
  std::string skipped = {};  // the reason why the comparison did not run; empty if it ran
};

// Formats a table with a heading and one line for each check.
std::string KernelCheckTable(std::span<const KernelCheck> checks);

}  // namespace quire::kernels
