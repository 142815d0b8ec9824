// Devices, versions, errors, attributes of kernels.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/runtime_state.h"
#include "tests/cuda_emulator/simt.h"
#include "tests/cuda_emulator/tensor_map.h"

namespace emulator = quire::cuda_emulator;
using emulator::Call;
using emulator::CallWithoutDevice;
using emulator::Runtime;

namespace {

constexpr int kL2Bytes = 32 << 20;

std::uint32_t SharedLimit(const Runtime& runtime) {
  return runtime.options.compute_capability >= 90 ? emulator::kMaxSharedBytes : 163 * 1024;
}

// A multiprocessor has as much shared memory as a block may have, plus a KiB for each of its
// blocks.
constexpr std::uint32_t kReservedBytes = 1024;
constexpr std::uint32_t kThreadsAtOnce = 2048;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// Errors that the emulator returns, and those that tests inject.
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError", "hardware stack error"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction",
     "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace",
     "operation not supported on global/shared address space"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc", "invalid program counter"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* FindText(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

cudaError_t Attribute(const Runtime& runtime, cudaDeviceAttr attribute, int* value) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = runtime.options.compute_capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = runtime.options.compute_capability % 10;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = runtime.options.num_sms;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(SharedLimit(runtime));
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = static_cast<int>(emulator::kMaxThreads);
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = static_cast<int>(emulator::kWarpSize);
      return cudaSuccess;
    case cudaDevAttrClusterLaunch:
      *value = runtime.options.compute_capability >= 90 ? 1 : 0;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = kL2Bytes;
      return cudaSuccess;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t CheckDevice(const Runtime& runtime, int device) {
  return device < 0 || device >= runtime.options.num_devices ? cudaErrorInvalidDevice : cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call("cudaGetDeviceCount", [&](Runtime& runtime) {
    *count = runtime.options.num_devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return Call("cudaSetDevice", [&](Runtime& runtime) {
    const cudaError_t error = CheckDevice(runtime, device);
    if (error == cudaSuccess) emulator::CurrentDevice() = device;
    return error;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return Call("cudaGetDevice", [&](Runtime&) {
    *device = emulator::CurrentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return Call("cudaGetDeviceProperties", [&](Runtime& runtime) {
    const cudaError_t error = CheckDevice(runtime, device);
    if (error != cudaSuccess) return error;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "emulated sm_%d device",
                  runtime.options.compute_capability);
    properties->totalGlobalMem = runtime.options.memory_bytes;
    properties->major = runtime.options.compute_capability / 10;
    properties->minor = runtime.options.compute_capability % 10;
    properties->multiProcessorCount = runtime.options.num_sms;
    properties->warpSize = static_cast<int>(emulator::kWarpSize);
    properties->maxThreadsPerBlock = static_cast<int>(emulator::kMaxThreads);
    properties->sharedMemPerBlock = 48 * 1024;
    properties->sharedMemPerBlockOptin = SharedLimit(runtime);
    properties->l2CacheSize = kL2Bytes;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return Call("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    const cudaError_t error = CheckDevice(runtime, device);
    return error != cudaSuccess ? error : Attribute(runtime, attribute, value);
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return CallWithoutDevice("cudaDriverGetVersion", [&](Runtime& runtime) {
    *version = runtime.options.driver_version;
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return CallWithoutDevice("cudaRuntimeGetVersion", [&](Runtime&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call("cudaMemGetInfo", [&](Runtime& runtime) {
    const std::uint64_t used = emulator::DeviceBytesInUse();
    *total = runtime.options.memory_bytes;
    *free = *total > used ? *total - used : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = cudaPeekAtLastError();
  emulator::LastError() = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError(void) {
  Runtime& runtime = emulator::TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  return runtime.sticky != cudaSuccess ? runtime.sticky : emulator::LastError();
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const text = FindText(error);
  return text == nullptr ? "unrecognized error code" : text->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const text = FindText(error);
  return text == nullptr ? "unrecognized error code" : text->text;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return Call("cudaFuncSetAttribute", [&](Runtime& runtime) {
    ++runtime.function_calls;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::uint32_t>(value) > SharedLimit(runtime)) {
      return cudaErrorInvalidValue;
    }
    runtime.shared_limits[function] = static_cast<std::uint32_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return Call("cudaFuncGetAttributes", [&](Runtime& runtime) {
    ++runtime.function_calls;
    *attributes = {};
    return cudaSuccess;
  });
}

// Registers are not considered.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads,
                                                          size_t shared_bytes) {
  return Call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&](Runtime& runtime) {
    ++runtime.function_calls;
    const std::uint32_t limit = SharedLimit(runtime);
    if (shared_bytes > limit || threads <= 0) return cudaErrorInvalidValue;
    const std::size_t by_shared = (limit + kReservedBytes) / (shared_bytes + kReservedBytes);
    const std::size_t by_threads = kThreadsAtOnce / static_cast<std::uint32_t>(threads);
    *blocks = static_cast<int>(std::min(by_shared, by_threads));
    return cudaSuccess;
  });
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return Call("cudaGetDriverEntryPointByVersion", [&](Runtime&) {
    const bool found = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = found ? reinterpret_cast<void*>(&emulator::EncodeTiled) : nullptr;
    if (result != nullptr) {
      *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return found ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}

}  // extern "C"
