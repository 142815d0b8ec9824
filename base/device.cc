#include "base/device.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#ifdef QUIRE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

namespace quire {

#ifdef QUIRE_HAS_CUDA
namespace {

constexpr std::int32_t kOldestComputeCapability = 80;

// Formats 13000 as "13.0".
std::string CudaVersion(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string Capability(std::int32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

absl::StatusOr<int> CheckDriver() {
  int version = 0;
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaDriverGetVersion(&version), "cannot read the version of the CUDA driver"));
  if (version == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA driver is installed; this build needs a driver for CUDA ",
                     CudaVersion(CUDART_VERSION)));
  }
  // Drivers run code of any CUDA version with the same major version.
  if (version / 1000 < CUDART_VERSION / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA driver supports CUDA ", CudaVersion(version),
                     "; this build needs at least ", CudaVersion(CUDART_VERSION / 1000 * 1000)));
  }
  return version;
}

absl::Status CheckOrdinal(std::int32_t ordinal) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaErrorNoDevice) {
    QUIRE_RETURN_IF_ERROR(CudaStatus(error, "cannot count the CUDA devices"));
  } else {
    (void)cudaGetLastError();
  }
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "CUDA device ", ordinal, " does not exist; this machine has ", count, " devices"));
}

}  // namespace

bool HasCuda() {
  return true;
}

absl::StatusOr<Device> OpenCudaDevice(std::int32_t ordinal) {
  Device device{.kind = DeviceKind::kCuda, .ordinal = ordinal};
  QUIRE_ASSIGN_OR_RETURN(device.driver_version, CheckDriver());
  QUIRE_RETURN_IF_ERROR(CheckOrdinal(ordinal));
  cudaDeviceProp properties{};
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                 absl::StrCat("cannot read the properties of CUDA device ", ordinal)));
  device.name = properties.name;
  device.compute_capability = properties.major * 10 + properties.minor;
  device.num_sms = static_cast<std::uint32_t>(properties.multiProcessorCount);
  device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  if (device.compute_capability < kOldestComputeCapability) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUDA device ", ordinal, " (", device.name, ") has compute capability ",
                     Capability(device.compute_capability), "; this build needs at least ",
                     Capability(kOldestComputeCapability)));
  }
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  return device;
}

absl::Status UseDevice(const Device& device) {
  if (device.is_cpu()) return absl::OkStatus();
  return CudaStatus(cudaSetDevice(device.ordinal),
                    absl::StrCat("cannot select CUDA device ", device.ordinal));
}

absl::StatusOr<std::int64_t> FreeDeviceMemory(const Device& device) {
  QUIRE_CHECK(!device.is_cpu());
  QUIRE_RETURN_IF_ERROR(UseDevice(device));
  std::size_t free = 0;
  std::size_t total = 0;
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaMemGetInfo(&free, &total),
                 absl::StrCat("cannot read the free memory of CUDA device ", device.ordinal)));
  return static_cast<std::int64_t>(free);
}

#else

namespace {

absl::Status NoCudaError(std::int32_t ordinal) {
  return absl::UnimplementedError(absl::StrCat(
      "CUDA device ", ordinal, " needs a build with CUDA; this build has none (QUIRE_CUDA=OFF)"));
}

}  // namespace

bool HasCuda() {
  return false;
}

absl::StatusOr<Device> OpenCudaDevice(std::int32_t ordinal) {
  return NoCudaError(ordinal);
}

absl::Status UseDevice(const Device& device) {
  return device.is_cpu() ? absl::OkStatus() : NoCudaError(device.ordinal);
}

absl::StatusOr<std::int64_t> FreeDeviceMemory(const Device& device) {
  QUIRE_CHECK(!device.is_cpu());
  return NoCudaError(device.ordinal);
}

#endif

}  // namespace quire
