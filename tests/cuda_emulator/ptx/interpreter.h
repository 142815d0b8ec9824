#pragma once

// Runs kernels from the PTX that nvcc generated, on the emulator's machine (simt.h). Each emulated
// thread executes the instructions, and effects beyond one thread are delegated to the emulator's
// models. The text of inline assembly thus determines the result, as on a device. Elsewhere in the
// emulator the host emulations of the wrappers do.
//
// Threads: one at a time in the process, like kernels of the emulator.
// Errors:  a module with unknown syntax is not loaded. An unknown instruction is a problem of the
//          program, and aborts the process when a thread reaches it. If the process aborts inside a
//          kernel, the current instructions of the threads are printed with their source lines.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/cuda_emulator/ptx/form.h"
#include "tests/cuda_emulator/ptx/module.h"

namespace quire::cuda_emulator::ptx {

class Program {
 public:
  // Returns INVALID_ARGUMENT for text that ParseModule rejects.
  static absl::StatusOr<Program> Load(absl::string_view text);

  // Returns the unknown instructions, each with its source line and the problem.
  const std::vector<std::string>& problems() const { return problems_; }
  std::vector<std::string> KernelNames() const;
  bool Has(absl::string_view kernel) const { return Find(kernel) != nullptr; }

  // Executes one thread of a launch. `arguments` are those of the kernel in order, as bytes. They
  // must outlive the launch, be aligned to 128 bytes and have `ParameterBytes` bytes. REQUIRES:
  // Has(kernel).
  void RunThread(absl::string_view kernel, const std::byte* arguments);
  std::uint32_t ParameterBytes(absl::string_view kernel) const;

  // Returns the source lines of the inline assembly statements reached by threads since the last
  // call, including empty statements.
  std::set<SourceLine> TakeExecuted();
  // Returns the device requests of the kernel's threads since the last call that do not change
  // values here: caching, L2 policies, fences, register budgets, the start of the next kernel.
  std::set<std::string> TakeHints(absl::string_view kernel);

 private:
  struct Code {
    Kernel kernel;
    std::vector<Step> steps;  // one per instruction
    std::vector<bool> executed;
    std::set<std::string> hints;
  };

  Step Decode(const Module& module, const Kernel& kernel, const Instruction& instruction);
  Code* Find(absl::string_view kernel) const;

  std::vector<std::unique_ptr<Code>> codes_;
  std::vector<std::string> problems_;
};

}  // namespace quire::cuda_emulator::ptx
