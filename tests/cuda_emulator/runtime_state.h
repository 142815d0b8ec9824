#pragma once

// The state behind the emulated CUDA runtime (runtime_*.cc).

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

// What a stream does in order. cudaErrorNotReady: it waits for something outside of its stream, and
// is asked again.
using Operation = std::function<cudaError_t()>;
using Nodes = std::vector<Operation>;

// A capture under way on a stream.
struct Capture {
  Nodes nodes;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
};

// The end of what a stream held when an event was recorded.
struct Mark {
  cudaStream_t stream = nullptr;
  bool done = false;
  std::chrono::steady_clock::time_point when{};  // done
};

}  // namespace quire::cuda_emulator

struct CUstream_st {
  int device = 0;
  // Whether it keeps its order with the default stream.
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
  std::set<cudaStream_t> streams;  // but the default one
  std::set<cudaEvent_t> events;
  std::map<std::string, std::uint64_t> launches;
  std::map<std::string, std::uint64_t> blocks;  // of those launches
  std::uint64_t kernels_run = 0;
  std::uint32_t operations_under_way = 0;  // one inside another where a stream waits for an event
  // The stream of the last operation if that was a launch that was checked; null otherwise.
  CUstream_st* last_checked = nullptr;
  std::uint64_t allocations = 0;   // and frees
  std::uint64_t pinned_bytes = 0;  // ever allocated
};

// Never destroyed.
Runtime& TheRuntime();

// Runs `body` under the lock unless the device is lost, absent, or a fault strikes `name`; keeps
// what the calling thread's cudaGetLastError returns.
cudaError_t Call(const char* name, const std::function<cudaError_t(Runtime&)>& body);
// The same for the few calls that also work without a device.
cudaError_t CallWithoutDevice(const char* name, const std::function<cudaError_t(Runtime&)>& body);
// The fault at `where` whose time has come; cudaSuccess without one.
cudaError_t TakeFault(Runtime& runtime, const std::string& where);
// The calling thread's last error, and its device.
cudaError_t& LastError();
int& CurrentDevice();

// The stream behind a handle; null for one that does not exist.
CUstream_st* FindStream(Runtime& runtime, cudaStream_t handle);
// Appends to the stream, or to its capture. Runs it at once when nothing is deferred.
cudaError_t Enqueue(Runtime& runtime, CUstream_st* stream, Operation operation);
// Runs what the stream holds, all of it or until `mark` is done, and for the default stream what it
// is ordered behind. Returns the first error, which is sticky. While an operation waits, other
// threads have the lock; inside another operation the answer is cudaErrorNotReady then.
cudaError_t Drain(Runtime& runtime, CUstream_st* stream, const Mark* mark = nullptr);
// All streams of the calling thread's device.
cudaError_t DrainAll(Runtime& runtime);
// Runs one operation, as a device does while the host polls.
cudaError_t Progress(Runtime& runtime, CUstream_st* stream);
// cudaErrorStreamCaptureUnsupported, and the end of the captures, when the calling thread may not
// make a call that waits or allocates because of a capture.
cudaError_t CheckUnsafeCall(Runtime& runtime);

}  // namespace quire::cuda_emulator
