#include "base/stream.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#ifdef QUIRE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

namespace quire {

#ifdef QUIRE_HAS_CUDA

absl::StatusOr<Stream> Stream::Create(const Device& device) {
  Stream stream(device);
  if (device.is_cpu()) return stream;
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  // Does not synchronize with the default stream, which this program uses only to zero new buffers
  // (device_buffer.cc).
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
                 absl::StrCat("cannot create a stream on CUDA device ", device.ordinal)));
  return stream;
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  // Errors are ignored, because the owner already received the errors of all work that it waited
  // for.
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
  (void)cudaGetLastError();
}

absl::Status Stream::Synchronize() const {
  if (stream_ == nullptr) return absl::OkStatus();
  return CudaStatus(cudaStreamSynchronize(stream_), "cannot wait for a stream");
}

absl::Status Stream::Copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot copy ", bytes, " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  if (stream_ == nullptr) {
    std::memmove(to, from, static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }
  const cudaError_t error =
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_);
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaStatus(error, absl::StrCat("cannot copy ", bytes, " bytes"));
}

absl::Status Stream::Zero(void* to, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot zero ", bytes, " bytes"));
  }
  if (bytes == 0) return absl::OkStatus();
  if (stream_ == nullptr) {
    std::memset(to, 0, static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }
  const cudaError_t error = cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream_);
  if (error == cudaSuccess) return absl::OkStatus();
  return CudaStatus(error, absl::StrCat("cannot zero ", bytes, " bytes"));
}

absl::Status Stream::WaitFor(const Event& event) const {
  if (stream_ == nullptr || event.cuda() == nullptr) return absl::OkStatus();
  return CudaStatus(cudaStreamWaitEvent(stream_, event.cuda(), 0),
                    "cannot make a stream wait for an event");
}

absl::StatusOr<Event> Event::Create(const Device& device) {
  Event event;
  if (device.is_cpu()) return event;
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming),
                 absl::StrCat("cannot create an event on CUDA device ", device.ordinal)));
  return event;
}

Event::~Event() {
  if (event_ == nullptr) return;
  (void)cudaEventDestroy(event_);
  (void)cudaGetLastError();
}

absl::Status Event::Record(const Stream& stream) {
  if (event_ == nullptr || stream.cuda() == nullptr) return absl::OkStatus();
  return CudaStatus(cudaEventRecord(event_, stream.cuda()), "cannot record an event");
}

absl::Status Event::Synchronize() const {
  if (event_ == nullptr) return absl::OkStatus();
  return CudaStatus(cudaEventSynchronize(event_), "cannot wait for an event");
}

absl::StatusOr<bool> Event::IsDone() const {
  if (event_ == nullptr) return true;
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  QUIRE_RETURN_IF_ERROR(CudaStatus(error, "cannot query an event"));
  return true;
}

#else

absl::StatusOr<Stream> Stream::Create(const Device& device) {
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  return Stream(device);
}

Stream::~Stream() = default;

absl::Status Stream::Synchronize() const {
  return absl::OkStatus();
}

absl::Status Stream::Copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot copy ", bytes, " bytes"));
  }
  if (bytes > 0) std::memmove(to, from, static_cast<std::size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Stream::Zero(void* to, std::int64_t bytes) const {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot zero ", bytes, " bytes"));
  }
  if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Stream::WaitFor(const Event&) const {
  return absl::OkStatus();
}

absl::StatusOr<Event> Event::Create(const Device& device) {
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  return Event();
}

Event::~Event() = default;

absl::Status Event::Record(const Stream&) {
  return absl::OkStatus();
}

absl::Status Event::Synchronize() const {
  return absl::OkStatus();
}

absl::StatusOr<bool> Event::IsDone() const {
  return true;
}

#endif

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
