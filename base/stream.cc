#include "base/stream.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#ifdef QUIRE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

namespace quire {

absl::StatusOr<Stream> Stream::Create(const Device& device) {
  Stream stream(device);
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
#ifdef QUIRE_HAS_CUDA
  // Does not synchronize with the default stream, which this program uses only to zero new buffers
  // (device_buffer.cc).
  if (!device.is_cpu()) {
    QUIRE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
                   absl::StrCat("cannot create a stream on CUDA device ", device.ordinal)));
  }
#endif
  return stream;
}

Stream::~Stream() {
#ifdef QUIRE_HAS_CUDA
  if (stream_ == nullptr) return;
  // Errors are ignored, because the owner already received the errors of all work that it waited
  // for.
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
#endif
}

absl::Status Stream::Synchronize() const {
#ifdef QUIRE_HAS_CUDA
  if (stream_ != nullptr) {
    return CudaStatus(cudaStreamSynchronize(stream_), "cannot wait for a stream");
  }
#endif
  return absl::OkStatus();
}

absl::Status Stream::Copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot copy ", bytes, " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  const auto size = static_cast<std::size_t>(bytes);
#ifdef QUIRE_HAS_CUDA
  if (stream_ != nullptr) {
    const cudaError_t error = cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream_);
    if (error == cudaSuccess) return absl::OkStatus();
    return CudaStatus(error, absl::StrCat("cannot copy ", bytes, " bytes"));
  }
#endif
  std::memmove(to, from, size);
  return absl::OkStatus();
}

absl::Status Stream::Zero(void* to, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot zero ", bytes, " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  const auto size = static_cast<std::size_t>(bytes);
#ifdef QUIRE_HAS_CUDA
  if (stream_ != nullptr) {
    const cudaError_t error = cudaMemsetAsync(to, 0, size, stream_);
    if (error == cudaSuccess) return absl::OkStatus();
    return CudaStatus(error, absl::StrCat("cannot zero ", bytes, " bytes"));
  }
#endif
  std::memset(to, 0, size);
  return absl::OkStatus();
}

absl::Status Stream::WaitFor([[maybe_unused]] const Event& event) const {
#ifdef QUIRE_HAS_CUDA
  if (stream_ != nullptr && event.cuda() != nullptr) {
    return CudaStatus(cudaStreamWaitEvent(stream_, event.cuda(), 0),
                      "cannot make a stream wait for an event");
  }
#endif
  return absl::OkStatus();
}

absl::StatusOr<Event> Event::Create(const Device& device) {
  Event event;
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
#ifdef QUIRE_HAS_CUDA
  if (!device.is_cpu()) {
    QUIRE_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming),
                   absl::StrCat("cannot create an event on CUDA device ", device.ordinal)));
  }
#endif
  return event;
}

Event::~Event() {
#ifdef QUIRE_HAS_CUDA
  if (event_ == nullptr) return;
  (void)cudaEventDestroy(event_);
  (void)cudaGetLastError();
#endif
}

absl::Status Event::Record([[maybe_unused]] const Stream& stream) {
#ifdef QUIRE_HAS_CUDA
  if (event_ != nullptr && stream.cuda() != nullptr) {
    return CudaStatus(cudaEventRecord(event_, stream.cuda()), "cannot record an event");
  }
#endif
  return absl::OkStatus();
}

absl::Status Event::Synchronize() const {
#ifdef QUIRE_HAS_CUDA
  if (event_ != nullptr) {
    return CudaStatus(cudaEventSynchronize(event_), "cannot wait for an event");
  }
#endif
  return absl::OkStatus();
}

absl::StatusOr<bool> Event::IsDone() const {
#ifdef QUIRE_HAS_CUDA
  if (event_ == nullptr) return true;
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  QUIRE_RETURN_IF_ERROR(CudaStatus(error, "cannot query an event"));
#endif
  return true;
}

Stream::Stream(Stream&& other) noexcept
    : device_(std::move(other.device_)), stream_(std::exchange(other.stream_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}

}  // namespace quire
