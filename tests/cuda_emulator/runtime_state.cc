#include "tests/cuda_emulator/runtime_state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/cuda_emulator/launch.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

EmulatorOptions DefaultOptions() {
  EmulatorOptions options;
  if (const char* const seed = std::getenv("QUIRE_EMULATOR_SEED"); seed != nullptr) {
    options.seed = std::strtoull(seed, nullptr, 10);
  }
  if (const char* const check = std::getenv("QUIRE_EMULATOR_CHECK"); check != nullptr) {
    if (std::strcmp(check, "all") == 0) {
      options.check = CheckedLaunches::kAll;
    } else if (std::strcmp(check, "none") == 0) {
      options.check = CheckedLaunches::kNone;
    } else if (std::strcmp(check, "some") != 0) {
      std::fprintf(stderr, "QUIRE_EMULATOR_CHECK is %s, none of none, some, all\n", check);
      std::abort();
    }
  }
  return options;
}

void Apply(Runtime& runtime, const EmulatorOptions& options) {
  constexpr std::uint32_t kSometimes = 16;
  runtime.options = options;
  CloseDeviceMemoryEvery(options.check == CheckedLaunches::kAll ? 1 : kSometimes);
  LetHostTouchDeviceMemory(options.host_may_touch);
}

std::uint32_t MaxSharedBytes(int compute_capability) {
  return compute_capability >= 90 ? kMaxSharedBytes : 163 * 1024;
}

cudaError_t RunOne(Runtime& runtime, CUstream_st* stream) {
  ++runtime.operations_under_way;
  const cudaError_t error = stream->queue.front()();
  --runtime.operations_under_way;
  if (error == cudaErrorNotReady) return error;
  stream->queue.pop_front();
  if (error != cudaSuccess) {
    runtime.sticky = error;
    stream->queue.clear();
  }
  return error;
}

// Runs other devices and lets other threads use the runtime. REQUIRES: no operation is running.
void GiveWay(Runtime& runtime, const CUstream_st* waiting) {
  for (CUstream_st* stream : runtime.streams) {
    if (stream->device != waiting->device && !stream->queue.empty()) (void)RunOne(runtime, stream);
  }
  runtime.mutex.unlock();
  std::this_thread::yield();
  runtime.mutex.lock();
}

// Selects a sample of launches: the first ones of a kernel, which cover most of its small shapes,
// and four in a row of 128.
bool IsChecked(const Runtime& runtime, const KernelLaunch& launch) {
  constexpr std::uint64_t kFirst = 4;
  if (runtime.options.check != CheckedLaunches::kSome) {
    return runtime.options.check == CheckedLaunches::kAll;
  }
  return (runtime.kernels_run + runtime.options.seed) / 4 % 32 == 0 ||
         runtime.launches.at(launch.name) <= kFirst;
}

cudaError_t RunLaunch(const KernelLaunch& launch, CUstream_st* stream) {
  Runtime& runtime = TheRuntime();
  const cudaError_t fault = TakeFault(runtime, "kernel:" + launch.name);
  if (fault != cudaSuccess) return fault;
  ++runtime.launches[launch.name];
  runtime.blocks[launch.name] += std::uint64_t{launch.blocks_x} * launch.blocks_y;
  const bool check = IsChecked(runtime, launch);
  const bool follows = launch.programmatic && runtime.last_checked == stream;
  InstallFaultMessage();
  RunKernel(launch, {.seed = runtime.options.seed * 0x100000001b3u + runtime.kernels_run++,
                     .check = check,
                     .follows = follows});
  runtime.last_checked = check ? stream : nullptr;
  return cudaSuccess;
}

cudaError_t CheckShape(const Runtime& runtime, const KernelLaunch& launch) {
  if (launch.threads == 0 || launch.threads > kMaxThreads || launch.blocks_x > 0x7fffffffu ||
      launch.blocks_y > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  const bool has_clusters = runtime.options.compute_capability >= 90;
  if (launch.cluster_x == 0 || launch.blocks_x % launch.cluster_x != 0 ||
      launch.cluster_x > (has_clusters ? kMaxResidentBlocks : 1)) {
    return cudaErrorInvalidClusterSize;
  }
  if (launch.shared_bytes > MaxSharedBytes(runtime.options.compute_capability)) {
    return cudaErrorInvalidValue;
  }
  constexpr std::uint32_t kDefaultSharedBytes = 48 * 1024;
  if (launch.function == nullptr || launch.shared_bytes <= kDefaultSharedBytes) return cudaSuccess;
  const auto limit = runtime.shared_limits.find(launch.function);
  const bool is_allowed =
      limit != runtime.shared_limits.end() && launch.shared_bytes <= limit->second;
  return is_allowed ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t Guarded(Runtime& runtime, const char* name, bool needs_device,
                    const std::function<cudaError_t(Runtime&)>& body) {
  if (needs_device && runtime.options.driver_version < CUDART_VERSION / 1000 * 1000) {
    return cudaErrorInsufficientDriver;
  }
  if (needs_device && runtime.options.num_devices == 0) return cudaErrorNoDevice;
  if (runtime.sticky != cudaSuccess) return runtime.sticky;
  const cudaError_t fault = TakeFault(runtime, name);
  return fault != cudaSuccess ? fault : body(runtime);
}

cudaError_t CallAny(const char* name, bool needs_device,
                    const std::function<cudaError_t(Runtime&)>& body) {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  const cudaError_t error = Guarded(runtime, name, needs_device, body);
  // This is a result and not an error.
  if (error != cudaSuccess && error != cudaErrorNotReady) LastError() = error;
  return error;
}

}  // namespace

Runtime& TheRuntime() {
  static Runtime& runtime = []() -> Runtime& {
    auto& made = *new Runtime;
    Apply(made, DefaultOptions());
    return made;
  }();
  return runtime;
}

cudaError_t& LastError() {
  thread_local cudaError_t last = cudaSuccess;
  return last;
}

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t TakeFault(Runtime& runtime, const std::string& where) {
  for (auto fault = runtime.faults.begin(); fault != runtime.faults.end(); ++fault) {
    if (fault->where != where) continue;
    if (fault->after > 0) {
      --fault->after;
      continue;
    }
    const Fault taken = *fault;
    runtime.faults.erase(fault);
    if (taken.sticky) runtime.sticky = taken.error;
    return taken.error;
  }
  return cudaSuccess;
}

cudaError_t Call(const char* name, const std::function<cudaError_t(Runtime&)>& body) {
  return CallAny(name, /*needs_device=*/true, body);
}

cudaError_t CallWithoutDevice(const char* name, const std::function<cudaError_t(Runtime&)>& body) {
  return CallAny(name, /*needs_device=*/false, body);
}

CUstream_st* FindStream(Runtime& runtime, cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return &runtime.default_stream;
  return runtime.streams.contains(handle) ? handle : nullptr;
}

cudaError_t Enqueue(Runtime& runtime, CUstream_st* stream, Operation operation) {
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    stream->capture->nodes.push_back(std::move(operation));
    return cudaSuccess;
  }
  stream->queue.push_back(std::move(operation));
  if (runtime.options.deferred) return cudaSuccess;
  // Errors of the work itself appear at the next call.
  (void)Drain(runtime, stream);
  return cudaSuccess;
}

cudaError_t Drain(Runtime& runtime, CUstream_st* stream, const Mark* mark) {
  const DeviceMemoryAccess access;
  if (stream == &runtime.default_stream) {
    // During Drain, other threads may destroy some.
    const std::set<cudaStream_t> others = runtime.streams;
    for (CUstream_st* other : others) {
      if (!runtime.streams.contains(other) || !other->blocking) continue;
      const cudaError_t error = Drain(runtime, other);
      if (error != cudaSuccess) return error;
    }
  }
  while (!stream->queue.empty() && (mark == nullptr || !mark->done)) {
    const cudaError_t error = RunOne(runtime, stream);
    if (error == cudaErrorNotReady && runtime.operations_under_way == 0) {
      GiveWay(runtime, stream);
      if (runtime.sticky != cudaSuccess) return runtime.sticky;
    } else if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t DrainAll(Runtime& runtime) {
  // During Drain, other threads may destroy some.
  const std::set<cudaStream_t> streams = runtime.streams;
  for (CUstream_st* stream : streams) {
    if (!runtime.streams.contains(stream) || stream->device != CurrentDevice()) continue;
    const cudaError_t error = Drain(runtime, stream);
    if (error != cudaSuccess) return error;
  }
  return Drain(runtime, &runtime.default_stream);
}

cudaError_t Progress(Runtime& runtime, CUstream_st* stream) {
  if (stream->queue.empty()) return cudaSuccess;
  const DeviceMemoryAccess access;
  return RunOne(runtime, stream);
}

cudaError_t CheckUnsafeCall(Runtime& runtime) {
  bool unsafe = false;
  for (CUstream_st* stream : runtime.streams) {
    Capture* const capture = stream->capture.get();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal &&
        capture->thread != std::this_thread::get_id()) {
      continue;
    }
    capture->invalid = true;
    unsafe = true;
  }
  return unsafe ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t EnqueueKernel(cudaStream_t handle, KernelLaunch launch) {
  return Call("cudaLaunchKernelExC", [&](Runtime& runtime) {
    const cudaError_t shape = CheckShape(runtime, launch);
    if (shape != cudaSuccess) return shape;
    CUstream_st* const stream = FindStream(runtime, handle);
    const bool is_of_device = stream == &runtime.default_stream ||
                              (stream != nullptr && stream->device == CurrentDevice());
    if (!is_of_device) return cudaErrorInvalidResourceHandle;
    return Enqueue(runtime, stream,
                   [launch = std::move(launch), stream] { return RunLaunch(launch, stream); });
  });
}

cudaError_t EnqueueOperation(cudaStream_t handle, std::function<cudaError_t()> operation) {
  return Call("EnqueueOperation", [&](Runtime& runtime) {
    CUstream_st* const stream = FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return Enqueue(runtime, stream, [operation = std::move(operation)] {
      TheRuntime().last_checked = nullptr;
      return operation();
    });
  });
}

EmulatorOptions GetOptions() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().options;
}

void SetOptions(const EmulatorOptions& options) {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  Apply(TheRuntime(), options);
}

void InjectFault(const Fault& fault) {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  TheRuntime().faults.push_back(fault);
}

std::uint64_t LaunchCount(const std::string& kernel) {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().launches.find(kernel);
  return found == TheRuntime().launches.end() ? 0 : found->second;
}

std::uint64_t LaunchCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  std::uint64_t sum = 0;
  for (const auto& [name, count] : TheRuntime().launches) sum += count;
  return sum;
}

std::map<std::string, std::uint64_t> LaunchCounts() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().launches;
}

std::uint64_t BlockCount(const std::string& kernel) {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  const auto found = TheRuntime().blocks.find(kernel);
  return found == TheRuntime().blocks.end() ? 0 : found->second;
}

std::uint64_t CollectiveCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return GetSimtCounters().collectives;
}

std::uint64_t QueuedOperations() {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  std::uint64_t sum = runtime.default_stream.queue.size();
  for (const CUstream_st* stream : runtime.streams) sum += stream->queue.size();
  return sum;
}

std::uint64_t DeviceBytesAllocated() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return DeviceBytesInUse();
}

std::uint64_t AllocationCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().allocations;
}

std::uint64_t CaptureCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().captures;
}

std::uint64_t FunctionCallCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().function_calls;
}

std::uint64_t TensorMapCount() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().tensor_maps;
}

std::uint64_t PinnedBytesEverAllocated() {
  const std::lock_guard<std::mutex> lock(TheRuntime().mutex);
  return TheRuntime().pinned_bytes;
}

bool IsEmulated() {
  return true;
}

void Reset() {
  Runtime& runtime = TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  Apply(runtime, DefaultOptions());
  runtime.faults.clear();
  runtime.sticky = cudaSuccess;
  runtime.launches.clear();
  runtime.blocks.clear();
  runtime.kernels_run = 0;
  runtime.last_checked = nullptr;
  for (CUstream_st* stream : runtime.streams) {
    stream->queue.clear();
    stream->capture.reset();
  }
  LastError() = cudaSuccess;
}

}  // namespace quire::cuda_emulator
