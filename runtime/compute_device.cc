#include "runtime/compute_device.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/machine.h"
#include "base/status.h"
#include "kernels/linear/cublaslt.h"
#include "runtime/device_plan.h"

namespace quire::runtime {
namespace {

// True if `status` means that this build can use no GPU of this machine. device.type auto then
// selects the CPU. False if a GPU is not ready yet, because a restart may find it ready. CudaStatus
// gives that error the reason DEVICE_ERROR.
bool IsNoGpu(const absl::Status& status) {
  return !GetErrorReason(status) &&
         (absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status));
}

// Adds the reason DEVICE_ERROR to errors that a restart may fix. A build without CUDA and a missing
// or too old driver or GPU are reported like configuration errors.
absl::Status DeviceError(const absl::Status& status) {
  if (GetErrorReason(status) || IsNoGpu(status)) return status;
  return WithReason(status, Reason::kDeviceError);
}

constexpr char kNoGpuRemedy[] =
    "update the driver, select another GPU with device.ids, or set device.type: cpu";

// The portable kernels run on this compute capability and all later ones.
constexpr std::int32_t kPortableCapability = 80;

std::string CapabilityName(std::int32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

// If cuBLASLt is missing, returns NOT_FOUND for kFast.
absl::StatusOr<kernels::Backend> OpenBackend(const Stream& stream, kernels::Determinism determinism,
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

std::unique_ptr<ThreadPool> MakeThreads(const DeviceOptions& options) {
  const Machine machine = Machine::Detect();
  const int threads = NumThreads(options);
  ThreadPoolOptions pool;
  if (options.pin_threads) pool.cpus = machine.CpusToBind(threads);
  log::Info(
      "device", "compute threads",
      {{"threads", threads}, {"cores", machine.physical_cores()}, {"bound", !pool.cpus.empty()}});
  return std::make_unique<ThreadPool>(threads, std::move(pool));
}

}  // namespace

int NumThreads(const DeviceOptions& options) {
  return options.threads ? *options.threads : Machine::Detect().physical_cores();
}

bool IsDeviceError(const absl::Status& status) {
  return HasReason(status, Reason::kDeviceError) || HasReason(status, Reason::kDeviceLost);
}

absl::Status SelectIsa(const DeviceOptions& options) {
  absl::string_view key = "device.cpu.isa";
  absl::Status status = kernels::SelectCpuIsa(options.isa);
  if (status.ok()) {
    key = "device.cpu.activations";
    status = kernels::CheckCpuActivations(options.activations);
  }
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(key, ": ", status.message()));
}

absl::Status SelectCheckedIsa(const DeviceOptions& options, const CpuCheck& check) {
  QUIRE_RETURN_IF_ERROR(check.status);
  DeviceOptions checked = options;
  checked.isa = check.isa;
  return SelectIsa(checked);
}

absl::StatusOr<DeviceKind> ChooseDevice(const DeviceOptions& options) {
  if (options.type == DeviceChoice::kCpu) return DeviceKind::kCpu;
  if (options.type == DeviceChoice::kCuda) return DeviceKind::kCuda;
  const absl::StatusOr<Device> gpu = OpenCudaDevice(options.cuda_ordinal);
  if (gpu.ok()) return DeviceKind::kCuda;
  if (IsNoGpu(gpu.status())) return DeviceKind::kCpu;
  return DeviceError(gpu.status());
}

absl::StatusOr<std::unique_ptr<ComputeDevice>> ComputeDevice::Open(const DeviceOptions& options,
                                                                   const CpuCheck& cpu_check) {
  // The instruction set is selected even if a GPU computes the model: the CPU packs the weights and
  // computes references for the self-check of the GPU.
  if (cpu_check.status.ok()) LogSkippedLevels(cpu_check);
  QUIRE_RETURN_IF_ERROR(SelectCheckedIsa(options, cpu_check));
  std::unique_ptr<ComputeDevice> opened(new ComputeDevice());
  opened->threads_ = MakeThreads(options);
  const DeviceChoice choice = options.type;
  std::string why = "device.type is cpu";
  if (choice != DeviceChoice::kCpu) {
    const absl::Status status = opened->OpenCuda(options);
    if (status.ok()) {
      const Device& device = opened->device();
      log::Info("device", "computing on a GPU",
                {{"name", device.name},
                 {"ordinal", device.ordinal},
                 {"compute_capability", CapabilityName(opened->compute_capability_)},
                 {"driver", device.driver_version},
                 {"memory_bytes", device.memory_bytes},
                 {"hopper_kernels", opened->backend().cuda()->has_sm90a()}});
      return opened;
    }
    if (!IsNoGpu(status)) return status;
    if (choice == DeviceChoice::kCuda) {
      const absl::string_view remedy =
          absl::IsUnimplemented(status) ? "set device.type: cpu" : kNoGpuRemedy;
      return absl::Status(status.code(), absl::StrCat(status.message(), "; ", remedy));
    }
    why = absl::StrCat("device.type is auto and no GPU is usable: ", status.message());
  }
  opened->self_check_ = cpu_check.result;
  QUIRE_RETURN_IF_ERROR(opened->SetActivations(options.activations));
  log::Info("device", "computing on the CPU",
            {{"isa", opened->backend_->isa()},
             {"reason", why},
             {"checks", cpu_check.result.checks},
             {"check_seconds", cpu_check.result.time}});
  return opened;
}

absl::Status ComputeDevice::OpenCuda(const DeviceOptions& options) {
  absl::StatusOr<Device> device = OpenCudaDevice(options.cuda_ordinal);
  if (!device.ok()) return DeviceError(device.status());
  compute_capability_ = device->compute_capability;
  if (!options.hopper_kernels) {
    device->compute_capability = std::min(device->compute_capability, kPortableCapability);
  }
  absl::StatusOr<Stream> stream = Stream::Create(*device);
  if (!stream.ok()) return DeviceError(stream.status());
  stream_.emplace(*std::move(stream));
  absl::StatusOr<kernels::Backend> backend =
      OpenBackend(*stream_, DeterminismOf(options), threads_.get());
  if (!backend.ok()) {
    stream_.reset();
    return backend.status();
  }
  backend_.emplace(*std::move(backend));
  return absl::OkStatus();
}

absl::Status ComputeDevice::SetActivations(kernels::CpuActivations activations) {
  QUIRE_CHECK(!stream_);  // no GPU is open
  QUIRE_ASSIGN_OR_RETURN(kernels::Backend backend,
                         kernels::Backend::Create(Device::Cpu(), threads_.get(), activations));
  backend_.emplace(std::move(backend));
  return absl::OkStatus();
}

DeviceDescription ComputeDevice::Describe() const {
  DeviceDescription description;
  description.device = device();
  description.self_check = self_check_;
  if (is_cpu()) {
    description.name = Machine::Detect().cpu_model();
    description.architecture = std::string(backend_->isa());
    description.activations = std::string(kernels::CpuActivationsName(backend_->activations()));
    return description;
  }
  description.name = device().name;
  description.architecture = CapabilityName(compute_capability_);
  return description;
}

}  // namespace quire::runtime
