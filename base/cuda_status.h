#pragma once

// Errors of the CUDA runtime as absl::Status. Part of builds with CUDA only.

#include <driver_types.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quire {

// OK for cudaSuccess. Otherwise "<what>: <CUDA's name and text of the error>", with
//   RESOURCE_EXHAUSTED   out of memory
//   UNAVAILABLE          the device is gone for this process: reason DEVICE_LOST
//                        (base/error_reason.h). Such an error is sticky, every later call fails
//                        too, so the process must end
//   FAILED_PRECONDITION  no driver, a driver that is too old, no device
//   INTERNAL             everything else
// The runtime's own last-error state is cleared.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Whether `status` came from a sticky error.
bool IsDeviceLost(const absl::Status& status);

}  // namespace quire
