#pragma once

// Runs kernels from the PTX that nvcc generated, on the emulator's scheduler (simt.h). Each
// emulated thread interprets the instructions. The emulator's models implement instructions that
// involve other threads or asynchronous units. The inline assembly of the wrappers is therefore
// executed as on a device, while elsewhere the emulator runs their host emulation.
//
// Threads: one at a time in the process, like the emulator's kernels.
// Errors:  a module with unknown syntax is not loaded. An unknown instruction is a problem of the
//          program and aborts the process when a thread reaches it. When the process aborts inside
//          a kernel, the current instructions of the threads are printed with their source lines.

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

  // Instructions of unknown form, each with its source line and the error.
  const std::vector<std::string>& problems() const { return problems_; }
  std::vector<std::string> KernelNames() const;
  bool Has(absl::string_view kernel) const { return Find(kernel) != nullptr; }

  // Runs one thread of a launch. `arguments` are the bytes of the kernel's arguments in order. They
  // must outlive the launch, be aligned to 128 bytes and have `ParameterBytes`. REQUIRES:
  // Has(kernel).
  void RunThread(absl::string_view kernel, const std::byte* arguments);
  std::uint32_t ParameterBytes(absl::string_view kernel) const;

  // Returns the source lines of the inline assembly statements that threads have reached since the
  // last call, including statements with empty text.
  std::set<SourceLine> TakeExecuted();
  // Returns the hints that threads of the kernel have executed since the last call. A hint changes
  // no value in the emulator: caching, L2 policies, fences, register budgets, launch of the next
  // kernel.
  std::set<std::string> TakeHints(absl::string_view kernel);

 private:
  struct Code {
    Kernel kernel;
    std::vector<Step> steps;  // one for each instruction
    std::vector<bool> executed;
    std::set<std::string> hints;
  };

  Step Decode(const Module& module, const Kernel& kernel, const Instruction& instruction);
  Code* Find(absl::string_view kernel) const;

  std::vector<std::unique_ptr<Code>> codes_;
  std::vector<std::string> problems_;
};

}  // namespace quire::cuda_emulator::ptx
