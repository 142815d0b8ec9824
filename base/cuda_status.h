#pragma once

// Converts errors of the CUDA runtime to absl::Status. Only builds with CUDA contain this file.

#include <driver_types.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire {

// Returns OK for cudaSuccess. Otherwise the message is "<what>: <CUDA's name and text of the
// error>" and the code is
//   RESOURCE_EXHAUSTED   out of memory
//   UNAVAILABLE          this process has lost the device; the reason is DEVICE_LOST
//                        (base/error_reason.h). The error is sticky: every later call fails
//                        too, so the process must end
//   FAILED_PRECONDITION  no driver, a driver that is too old, no device. A device that may become
//                        usable later, for example because another process uses it exclusively,
//                        has the reason DEVICE_ERROR
//   INTERNAL             everything else
// Also clears the runtime's last-error state.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

}  // namespace quire
