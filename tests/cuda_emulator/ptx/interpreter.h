#pragma once

// Runs kernels from the PTX that nvcc made of them, on the machine of the emulator (simt.h): each
// emulated thread goes through the instructions, and what goes beyond it is asked of the emulator's
// models. So the text of inline assembly decides what happens, as on a device, where the host
// emulation of the wrappers decide elsewhere in the emulator.
//
// Threads: one at a time in the process, as kernels of the emulator.
// Errors:  a module with syntax that is not known is not loaded; an instruction that is not known
//          is a problem of the program, and ends the process where a thread gets to it. When the
//          process ends inside a kernel, the instructions where threads stand are printed, with the
//          lines of the source that they come from.

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
  // Returns INVALID_ARGUMENT for text that ParseModule refuses.
  static absl::StatusOr<Program> Load(absl::string_view text);

  // Instructions whose form is not known, each with its source line and what is wrong with it.
  const std::vector<std::string>& problems() const { return problems_; }
  std::vector<std::string> KernelNames() const;
  bool Has(absl::string_view kernel) const { return Find(kernel) != nullptr; }

  // What one thread of a launch does. `arguments` are the kernel's, in order, as bytes; they must
  // outlive the launch, be aligned to 128 bytes and have `ParameterBytes`. REQUIRES: Has(kernel).
  void RunThread(absl::string_view kernel, const std::byte* arguments);
  std::uint32_t ParameterBytes(absl::string_view kernel) const;

  // Source lines of the inline assembly statements that threads have got to since the last call,
  // those whose text is empty included.
  std::set<SourceLine> TakeExecuted();
  // What threads of the kernel have asked of the device since the last call that changes no value
  // here: caching, policies of L2, fences, register budgets, the start of the kernel behind.
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
