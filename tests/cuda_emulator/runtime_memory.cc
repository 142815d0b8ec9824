// Memory, copies and fills.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/runtime_state.h"

namespace emulator = quire::cuda_emulator;
using emulator::Call;
using emulator::MemoryKind;
using emulator::Runtime;

namespace {

// Rows of bytes. A plain copy has one row.
struct CopyShape {
  void* to;
  std::size_t to_pitch;
  const void* from;
  std::size_t from_pitch;
  std::size_t width;
  std::size_t height;
};

std::size_t Extent(std::size_t pitch, const CopyShape& copy) {
  return (copy.height - 1) * pitch + copy.width;
}

// No later kernel may start before this operation ends.
void CopyRows(const CopyShape& copy) {
  emulator::TheRuntime().last_checked = nullptr;
  for (std::size_t i = 0; i < copy.height; ++i) {
    std::memmove(static_cast<std::byte*>(copy.to) + i * copy.to_pitch,
                 static_cast<const std::byte*>(copy.from) + i * copy.from_pitch, copy.width);
  }
}

// Returns whether a copy kind permits a pointer at one end. Page-locked memory counts as host
// memory, and by its address as device memory.
bool FitsKind(MemoryKind memory, bool must_be_device) {
  return must_be_device ? memory != MemoryKind::kPageable : memory != MemoryKind::kDevice;
}

cudaError_t CheckCopy(const CopyShape& copy, cudaMemcpyKind kind) {
  if (copy.to == nullptr || copy.from == nullptr) return cudaErrorInvalidValue;
  if (copy.height > 1 && (copy.to_pitch < copy.width || copy.from_pitch < copy.width)) {
    return cudaErrorInvalidValue;
  }
  if (!emulator::IsInsideBlock(copy.to, Extent(copy.to_pitch, copy)) ||
      !emulator::IsInsideBlock(copy.from, Extent(copy.from_pitch, copy))) {
    return cudaErrorInvalidValue;
  }
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool fits = FitsKind(emulator::KindOf(copy.to), to_device) &&
                    FitsKind(emulator::KindOf(copy.from), from_device);
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

// Pinned and device memory is accessed when the copy runs. Pageable memory is read or written
// before the call returns.
cudaError_t EnqueueCopy(Runtime& runtime, const CopyShape& copy, cudaMemcpyKind kind,
                        cudaStream_t handle) {
  CUstream_st* const stream = emulator::FindStream(runtime, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (copy.width == 0 || copy.height == 0) return cudaSuccess;
  const cudaError_t error = CheckCopy(copy, kind);
  if (error != cudaSuccess) return error;
  const bool pageable_source = emulator::KindOf(copy.from) == MemoryKind::kPageable;
  const bool pageable_target = emulator::KindOf(copy.to) == MemoryKind::kPageable;
  if (stream->capture != nullptr && (pageable_source || pageable_target)) {
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  if (pageable_target) {
    const cudaError_t before = emulator::Drain(runtime, stream);
    const emulator::DeviceMemoryAccess access;
    if (before == cudaSuccess) CopyRows(copy);
    return before;
  }
  if (!pageable_source) {
    return emulator::Enqueue(runtime, stream, [copy] {
      CopyRows(copy);
      return cudaSuccess;
    });
  }
  const auto* const from = static_cast<const std::byte*>(copy.from);
  auto taken = std::make_shared<std::vector<std::byte>>(from, from + Extent(copy.from_pitch, copy));
  return emulator::Enqueue(runtime, stream, [copy, taken] {
    CopyShape own = copy;
    own.from = taken->data();
    CopyRows(own);
    return cudaSuccess;
  });
}

cudaError_t EnqueueFill(Runtime& runtime, void* to, std::size_t pitch, int value, std::size_t width,
                        std::size_t height, cudaStream_t handle) {
  CUstream_st* const stream = emulator::FindStream(runtime, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (width == 0 || height == 0) return cudaSuccess;
  if (!emulator::IsDeviceReadable(to, (height - 1) * pitch + width)) return cudaErrorInvalidValue;
  return emulator::Enqueue(runtime, stream, [=] {
    emulator::TheRuntime().last_checked = nullptr;
    for (std::size_t i = 0; i < height; ++i) {
      std::memset(static_cast<std::byte*>(to) + i * pitch, value, width);
    }
    return cudaSuccess;
  });
}

cudaError_t Allocate(Runtime& runtime, MemoryKind kind, void** p, std::size_t bytes) {
  *p = nullptr;
  const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
  if (unsafe != cudaSuccess) return unsafe;
  if (bytes == 0) return cudaSuccess;
  if (kind == MemoryKind::kDevice) {
    const std::uint64_t used = emulator::DeviceBytesInUse();
    const std::uint64_t free =
        runtime.options.memory_bytes > used ? runtime.options.memory_bytes - used : 0;
    if (bytes > free) return cudaErrorMemoryAllocation;
  }
  *p = emulator::AllocateMemory(kind, bytes);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  ++runtime.allocations;
  if (kind == MemoryKind::kPinned) runtime.pinned_bytes += bytes;
  return cudaSuccess;
}

// Pending work may still use the memory, so it is completed first.
cudaError_t Free(Runtime& runtime, MemoryKind kind, void* p) {
  if (p == nullptr) return cudaSuccess;
  const cudaError_t error = emulator::DrainAll(runtime);
  if (error != cudaSuccess) return error;
  if (!emulator::FreeMemory(kind, p)) return cudaErrorInvalidValue;
  ++runtime.allocations;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  return Call("cudaMalloc",
              [&](Runtime& runtime) { return Allocate(runtime, MemoryKind::kDevice, p, bytes); });
}

cudaError_t cudaFree(void* p) {
  return Call("cudaFree", [&](Runtime& runtime) { return Free(runtime, MemoryKind::kDevice, p); });
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned int) {
  return Call("cudaHostAlloc",
              [&](Runtime& runtime) { return Allocate(runtime, MemoryKind::kPinned, p, bytes); });
}

cudaError_t cudaMallocHost(void** p, size_t bytes) {
  return Call("cudaMallocHost",
              [&](Runtime& runtime) { return Allocate(runtime, MemoryKind::kPinned, p, bytes); });
}

cudaError_t cudaFreeHost(void* p) {
  return Call("cudaFreeHost",
              [&](Runtime& runtime) { return Free(runtime, MemoryKind::kPinned, p); });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Call("cudaMemcpy", [&](Runtime& runtime) {
    cudaError_t error = emulator::CheckUnsafeCall(runtime);
    if (error != cudaSuccess) return error;
    error = EnqueueCopy(runtime, {to, bytes, from, bytes, bytes, 1}, kind, nullptr);
    return error != cudaSuccess ? error : emulator::Drain(runtime, &runtime.default_stream);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", [&](Runtime& runtime) {
    return EnqueueCopy(runtime, {to, bytes, from, bytes, bytes, 1}, kind, stream);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return Call("cudaMemcpy2DAsync", [&](Runtime& runtime) {
    return EnqueueCopy(runtime, {to, to_pitch, from, from_pitch, width, height}, kind, stream);
  });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return Call("cudaMemset", [&](Runtime& runtime) {
    cudaError_t error = emulator::CheckUnsafeCall(runtime);
    if (error != cudaSuccess) return error;
    error = EnqueueFill(runtime, to, bytes, value, bytes, 1, nullptr);
    return error != cudaSuccess ? error : emulator::Drain(runtime, &runtime.default_stream);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Call("cudaMemsetAsync", [&](Runtime& runtime) {
    return EnqueueFill(runtime, to, bytes, value, bytes, 1, stream);
  });
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return Call("cudaMemset2DAsync", [&](Runtime& runtime) {
    return EnqueueFill(runtime, to, pitch, value, width, height, stream);
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  return Call("cudaPointerGetAttributes", [&](Runtime&) {
    *attributes = {};
    switch (emulator::KindOf(p)) {
      case MemoryKind::kDevice:
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = const_cast<void*>(p);
        break;
      case MemoryKind::kPinned:
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = const_cast<void*>(p);
        attributes->hostPointer = const_cast<void*>(p);
        break;
      case MemoryKind::kPageable:
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->hostPointer = const_cast<void*>(p);
        break;
    }
    return cudaSuccess;
  });
}

}  // extern "C"
