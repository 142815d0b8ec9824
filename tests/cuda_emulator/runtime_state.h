#pragma once

// The state of the emulated CUDA runtime (runtime_*.cc).

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

namespace quire::cuda_emulator {

// A stream's operation. cudaErrorNotReady means that it waits for something outside of its stream,
// and is retried.
using Operation = std::function<cudaError_t()>;
using Nodes = std::vector<Operation>;

// An active capture on a stream.
struct Capture {
  Nodes nodes;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
};

// The position of a stream at which an event was recorded.
struct Mark {
  cudaStream_t stream = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point when{};  // when it completed
};

}  // namespace quire::cuda_emulator

struct CUstream_st {
  int device = 0;
  // Whether the stream is ordered with the default stream.
  bool blocking = false;
  std::deque<quire::cuda_emulator::Operation> queue;
  std::unique_ptr<quire::cuda_emulator::Capture> capture;
};
struct CUevent_st {
  std::shared_ptr<quire::cuda_emulator::Mark> mark;
};
struct CUgraph_st {
  std::shared_ptr<const quire::cuda_emulator::Nodes> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const quire::cuda_emulator::Nodes> nodes;
};

namespace quire::cuda_emulator {

struct Runtime {
  std::mutex mutex;
  EmulatorOptions options;
  std::vector<Fault> faults;
  cudaError_t sticky = cudaSuccess;
  CUstream_st default_stream;
  std::set<cudaStream_t> streams;  // except the default one
  std::set<cudaEvent_t> events;
  std::map<std::string, std::uint64_t> launches;
  std::map<std::string, std::uint64_t> blocks;  // of those launches
  std::uint64_t kernels_run = 0;
  std::uint32_t operations_under_way = 0;  // nested if a stream waits for an event
  // The stream of the last operation if that was a checked launch, otherwise null.
  CUstream_st* last_checked = nullptr;
  // The largest dynamic shared memory that cudaFuncSetAttribute allowed, by kernel.
  std::map<const void*, std::uint32_t> shared_limits;
  std::uint64_t allocations = 0;     // number of allocations and frees
  std::uint64_t captures = 0;        // number of begun captures and instantiated graphs
  std::uint64_t function_calls = 0;  // number of calls about attributes of kernels
  std::uint64_t tensor_maps = 0;     // number of encoded tensor maps
  std::uint64_t pinned_bytes = 0;    // allocated in total
};

// Never destroyed.
Runtime& TheRuntime();

// Runs `body` under the lock unless the device is lost, absent, or a fault is injected into `name`.
// Records the result of the calling thread's cudaGetLastError.
cudaError_t Call(const char* name, const std::function<cudaError_t(Runtime&)>& body);
// The same for the few calls that also work without a device.
cudaError_t CallWithoutDevice(const char* name, const std::function<cudaError_t(Runtime&)>& body);
// Returns the due fault at `where`, or cudaSuccess.
cudaError_t TakeFault(Runtime& runtime, const std::string& where);
// The calling thread's last error, and its device.
cudaError_t& LastError();
int& CurrentDevice();

// Returns the stream of a handle, or null if it does not exist.
CUstream_st* FindStream(Runtime& runtime, cudaStream_t handle);
// Appends to the stream, or to its capture. Runs the operation at once unless work is deferred.
cudaError_t Enqueue(Runtime& runtime, CUstream_st* stream, Operation operation);
// Runs the operations of the stream, all or up to `mark`, and for the default stream those of the
// streams ordered before it. Returns the first error, which is sticky. While an operation waits,
// other threads can take the lock. Inside another operation the result is cudaErrorNotReady
// instead.
cudaError_t Drain(Runtime& runtime, CUstream_st* stream, const Mark* mark = nullptr);
// All streams of the calling thread's device.
cudaError_t DrainAll(Runtime& runtime);
// Runs one operation, like a device while the host polls.
cudaError_t Progress(Runtime& runtime, CUstream_st* stream);
// Returns cudaErrorStreamCaptureUnsupported and invalidates the captures if a capture forbids the
// calling thread a call that waits or allocates.
cudaError_t CheckUnsafeCall(Runtime& runtime);

}  // namespace quire::cuda_emulator
