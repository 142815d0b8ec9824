#include "kernels/backend/kernel_check.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace quire::kernels {

std::string KernelCheckTable(std::span<const KernelCheck> checks) {
  std::size_t kernel_width = 6, shape_width = 5;
  for (const KernelCheck& check : checks) {
    kernel_width = std::max(kernel_width, check.kernel.size());
    shape_width = std::max(shape_width, check.shape.size());
  }
  const auto line = [&](absl::string_view kernel, absl::string_view shape, absl::string_view error,
                        absl::string_view limit, absl::string_view bits, absl::string_view result) {
    return absl::StrFormat("%-*s  %-*s  %-8s  %-8s  %-10s  %s\n", kernel_width, kernel, shape_width,
                           shape, error, limit, bits, result);
  };
  std::string table = line("kernel", "shape", "error", "limit", "bits equal", "result");
  for (const KernelCheck& check : checks) {
    if (!check.skipped.empty()) {
      absl::StrAppend(&table, line(check.kernel, check.shape, "-", "-", "-",
                                   absl::StrCat("skipped: ", check.skipped)));
      continue;
    }
    const bool passed = check.fault.empty();
    absl::StrAppend(&table, line(check.kernel, check.shape, absl::StrFormat("%.1e", check.error),
                                 absl::StrFormat("%.1e", check.limit),
                                 passed && check.error == 0 ? "yes" : "no",
                                 passed ? "passed" : absl::StrCat("FAILED: ", check.fault)));
  }
  return table;
}

}  // namespace quire::kernels
