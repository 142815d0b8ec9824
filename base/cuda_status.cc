#include "base/cuda_status.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"

namespace quire {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorDevicesUnavailable:
      return absl::StatusCode::kFailedPrecondition;
    // The CUDA reference calls these errors sticky: the context is broken and every later call
    // returns the same error.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorExternalDevice:
    case cudaErrorTensorMemoryLeak:
    // A GPU that has fallen off the bus often reports cudaErrorUnknown.
    case cudaErrorUnknown:
    case cudaErrorContextIsDestroyed:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// True if the device may be usable later: its fabric manager is starting, or another process holds
// the GPU in exclusive mode.
bool IsTemporary(cudaError_t error) {
  return error == cudaErrorSystemNotReady || error == cudaErrorDevicesUnavailable;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  absl::Status status(CodeOf(error), absl::StrCat(what, ": ", cudaGetErrorName(error), ", ",
                                                  cudaGetErrorString(error)));
  if (IsTemporary(error)) return WithReason(status, Reason::kDeviceError);
  if (status.code() != absl::StatusCode::kUnavailable) return status;
  return WithReason(status, Reason::kDeviceLost);
}

}  // namespace quire
