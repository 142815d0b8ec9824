#include "server/compute_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/machine.h"
#include "base/status.h"
#include "kernels/backend/proven.h"
#include "kernels/linear/cublaslt.h"

namespace quire::server {
namespace {

kernels::Determinism ToDeterminism(absl::string_view name) {
  if (name == "strict") return kernels::Determinism::kStrict;
  if (name == "fast") return kernels::Determinism::kFast;
  return kernels::Determinism::kBatchInvariant;
}

absl::Status DeviceError(const absl::Status& status) {
  // A build without CUDA stays one.
  if (GetErrorReason(status) || absl::IsUnimplemented(status)) return status;
  return WithReason(status, Reason::kDeviceError);
}

std::string CapabilityName(std::int32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

// NOT_FOUND for kFast without cuBLASLt.
absl::StatusOr<kernels::Backend> OpenBackend(const Stream& stream,
                                             kernels::Determinism determinism,
                                             ThreadPool* threads) {
  QUIRE_ASSIGN_OR_RETURN(kernels::Backend backend,
                         kernels::Backend::CreateCuda(stream, determinism, threads));
  if constexpr (kernels::kHasCuda) {
    if (determinism == kernels::Determinism::kFast) {
      QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<kernels::cuda::CublasLt> library,
                             kernels::cuda::CublasLt::Open(stream));
      backend.UseCublasLt(std::move(library));
    }
  }
  return backend;
}

}  // namespace

bool IsDeviceError(const absl::Status& status) {
  return HasReason(status, Reason::kDeviceError) || HasReason(status, Reason::kDeviceLost);
}

absl::Status SelectIsa(const DaemonOptions& options) {
  const absl::Status status = kernels::SelectCpuIsa(options.cpu_isa);
  if (status.ok()) return status;
  return DeviceError(absl::Status(status.code(),
                                  absl::StrCat("device.cpu.isa: ", status.message())));
}

absl::StatusOr<std::unique_ptr<ComputeDevice>> ComputeDevice::Open(const DaemonOptions& options,
                                                                   ThreadPool* threads) {
  std::unique_ptr<ComputeDevice> opened(new ComputeDevice());
  const DeviceChoice choice = options.device.type;
  std::string why = "device.type is cpu";
  if (choice != DeviceChoice::kCpu) {
    const absl::Status status = opened->OpenCuda(options, threads);
    if (status.ok()) {
      const Device& device = opened->device();
      log::Info("device", "computing on a GPU",
                {{"name", device.name},
                 {"ordinal", device.ordinal},
                 {"compute_capability", CapabilityName(device.compute_capability)},
                 {"driver", device.driver_version},
                 {"memory_bytes", device.memory_bytes},
                 {"unproven_kernels", !kernels::AreKernelsProvenOn(device)}});
      return opened;
    }
    const bool no_gpu = absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
    if (choice == DeviceChoice::kCuda || !no_gpu) return status;
    why = absl::StrCat("device.type is auto and no GPU will do: ", status.message());
  }
  QUIRE_RETURN_IF_ERROR(SelectIsa(options));
  QUIRE_ASSIGN_OR_RETURN(kernels::Backend backend,
                         kernels::Backend::Create(Device::Cpu(), threads));
  opened->backend_.emplace(std::move(backend));
  log::Info("device", "computing on the CPU", {{"isa", opened->backend_->isa()}, {"why", why}});
  return opened;
}

absl::Status ComputeDevice::OpenCuda(const DaemonOptions& options, ThreadPool* threads) {
  const absl::StatusOr<Device> device = OpenCudaDevice(options.device.cuda_ordinal);
  if (!device.ok()) return DeviceError(device.status());
  absl::StatusOr<Stream> stream = Stream::Create(*device);
  if (!stream.ok()) return DeviceError(stream.status());
  stream_.emplace(*std::move(stream));
  absl::StatusOr<kernels::Backend> backend =
      OpenBackend(*stream_, ToDeterminism(options.determinism), threads);
  if (!backend.ok()) {
    stream_.reset();
    return backend.status();
  }
  backend_.emplace(*std::move(backend));
  return absl::OkStatus();
}

DeviceDescription ComputeDevice::Describe() const {
  DeviceDescription description;
  description.device = device();
  if (is_cpu()) {
    description.name = Machine::Detect().cpu_model();
    description.architecture = std::string(backend_->isa());
    return description;
  }
  description.name = device().name;
  description.architecture = CapabilityName(device().compute_capability);
  description.unproven_kernels = !kernels::AreKernelsProvenOn(device());
  return description;
}

}  // namespace quire::server
