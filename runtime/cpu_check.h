#pragma once

// Chooses the instruction set (level) of the CPU kernels by running each candidate on this machine,
// best first, until one passes the checks of cpu_kernel_check.h.
//
// A candidate runs in a child process, because an illegal instruction, a crash or a hang must not
// end the daemon. The child is forked without exec. It therefore needs no path to the binary, which
// an update may have replaced, and no dynamic linking. It inherits affinity, limits and system call
// filters, so it computes under the conditions of the daemon. Only the calling thread exists in the
// child, and a lock that another thread held would stay locked. So main calls CheckCpu before it
// starts threads. The child inherits the permission to use AMX's tile registers, dumps no core, and
// is killed when its parent ends.
//
// Place:   above cpu_kernel_check.h; main passes the result to ComputeDevice.
// Threads: REQUIRES: no other thread holds a lock that kernels or the memory allocator of the child
//          need. glibc resets the locks of malloc.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/kernel_check.h"
#include "runtime/cpu_kernel_check.h"
#include "runtime/device_description.h"
#include "runtime/runtime_options.h"

namespace quire::runtime {

// Tests replace these values to inject faults.
struct CpuCheckOptions {
  std::vector<std::string> levels = kernels::AvailableCpuIsas();  // best first
  std::function<absl::Status(absl::string_view level)> select = kernels::SelectCpuIsa;
  CheckedOps ops;
  absl::Duration time_limit = absl::Seconds(5);  // limit for one child process
};

// The check of one instruction set.
struct CpuLevelCheck {
  std::string level;
  std::vector<kernels::KernelCheck> kernels;  // in the order in which they ran, up to a crash
  absl::Duration time;

  // Returns the first check with a fault, or null.
  const kernels::KernelCheck* FindFault() const;
};

// Checks one level. Returns RESOURCE_EXHAUSTED if no child process can be started.
absl::StatusOr<CpuLevelCheck> CheckCpuLevel(absl::string_view level,
                                            const CpuCheckOptions& options = {});

// The result of CheckCpu: the instruction set for this process.
struct CpuCheck {
  // OK, or the reason why the CPU cannot be used: the configured level failed, all levels failed,
  // or no child process could be started.
  absl::Status status;
  std::string isa = "auto";  // the level that passed; device.cpu.isa if no level was checked
  SelfCheck result;          // summary over the levels that were checked
  std::vector<CpuLevelCheck> skipped;  // better levels, which failed
};

// Checks the configured level, or for auto all levels until one passes. Checks nothing if the
// machine does not have the configured level. SelectIsa (compute_device.h) then rejects that level.
CpuCheck CheckCpu(const DeviceOptions& device, const CpuCheckOptions& options = {});

// Logs one warning for each skipped level. REQUIRES: check.status is OK.
void LogSkippedLevels(const CpuCheck& check);

}  // namespace quire::runtime
