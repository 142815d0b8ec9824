#include "base/device_timer.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/cuda_status.h"
#include "base/status.h"

namespace quire {

absl::StatusOr<DeviceTimer> DeviceTimer::Create(const Stream& stream) {
  if (stream.cuda() == nullptr) return absl::UnimplementedError("device timers need a CUDA stream");
  QUIRE_RETURN_IF_ERROR(UseDevice(stream.device()));
  DeviceTimer timer(stream);
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&timer.start_), "cannot create an event of a timer"));
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreate(&timer.stop_), "cannot create an event of a timer"));
  return timer;
}

DeviceTimer::~DeviceTimer() {
  for (CUevent_st* const event : {start_, stop_}) {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();
}

absl::Status DeviceTimer::Start() {
  return CudaStatus(cudaEventRecord(start_, stream_->cuda()), "cannot start a timer");
}

absl::Status DeviceTimer::Stop() {
  return CudaStatus(cudaEventRecord(stop_, stream_->cuda()), "cannot stop a timer");
}

absl::StatusOr<absl::Duration> DeviceTimer::Elapsed() const {
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(stop_), "cannot wait for a timer"));
  float milliseconds = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&milliseconds, start_, stop_),
                                   "cannot read the time of a timer"));
  return absl::Milliseconds(milliseconds);
}

DeviceTimer::DeviceTimer(DeviceTimer&& other) noexcept
    : stream_(other.stream_),
      start_(std::exchange(other.start_, nullptr)),
      stop_(std::exchange(other.stop_, nullptr)) {}

}  // namespace quire
