// Streams, events, captures and graphs.

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "tests/cuda_emulator/runtime_state.h"

namespace emulator = quire::cuda_emulator;
using emulator::Call;
using emulator::Runtime;

namespace {

cudaError_t MakeStream(Runtime& runtime, cudaStream_t* stream, bool blocking) {
  *stream = new CUstream_st{
      .device = emulator::CurrentDevice(), .blocking = blocking, .queue = {}, .capture = {}};
  runtime.streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t MakeEvent(Runtime& runtime, cudaEvent_t* event) {
  *event = new CUevent_st;
  runtime.events.insert(*event);
  return cudaSuccess;
}

// Runs the stream of the mark up to the mark.
cudaError_t Reach(Runtime& runtime, const std::shared_ptr<emulator::Mark>& mark) {
  if (mark == nullptr || mark->done) return cudaSuccess;
  return emulator::Drain(runtime, mark->stream, mark.get());
}

// An event recorded in a capture belongs to the graph, so only the same capture may wait for it.
cudaError_t WaitInCapture(const CUstream_st* stream, const CUevent_st* event) {
  const bool same = event->mark != nullptr && event->mark->stream == stream;
  return same ? cudaSuccess : cudaErrorStreamCaptureIsolation;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return Call("cudaStreamCreate",
              [&](Runtime& runtime) { return MakeStream(runtime, stream, true); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return Call("cudaStreamCreateWithFlags", [&](Runtime& runtime) {
    return MakeStream(runtime, stream, (flags & cudaStreamNonBlocking) == 0);
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return Call("cudaStreamCreateWithPriority", [&](Runtime& runtime) {
    return MakeStream(runtime, stream, (flags & cudaStreamNonBlocking) == 0);
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Runtime& runtime = emulator::TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  if (!runtime.streams.contains(handle)) return cudaErrorInvalidResourceHandle;
  const cudaError_t error =
      runtime.sticky != cudaSuccess ? runtime.sticky : emulator::Drain(runtime, handle);
  runtime.streams.erase(handle);
  delete handle;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Call("cudaStreamSynchronize", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
    return unsafe != cudaSuccess ? unsafe : emulator::Drain(runtime, stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Call("cudaStreamQuery", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
    if (unsafe != cudaSuccess) return unsafe;
    if (stream->queue.empty()) return cudaSuccess;
    const cudaError_t error = emulator::Progress(runtime, stream);
    return error != cudaSuccess ? error : cudaErrorNotReady;
  });
}

cudaError_t cudaDeviceSynchronize(void) {
  return Call("cudaDeviceSynchronize", [&](Runtime& runtime) {
    const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
    return unsafe != cudaSuccess ? unsafe : emulator::DrainAll(runtime);
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return Call("cudaLaunchHostFunc", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return emulator::Enqueue(runtime, stream, [=] {
      function(data);
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return Call("cudaEventCreate", [&](Runtime& runtime) { return MakeEvent(runtime, event); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return Call("cudaEventCreateWithFlags",
              [&](Runtime& runtime) { return MakeEvent(runtime, event); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Runtime& runtime = emulator::TheRuntime();
  const std::lock_guard<std::mutex> lock(runtime.mutex);
  if (runtime.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  delete event;
  return runtime.sticky;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return Call("cudaEventRecord", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr || !runtime.events.contains(event)) return cudaErrorInvalidResourceHandle;
    auto mark = std::make_shared<emulator::Mark>(emulator::Mark{.stream = stream});
    event->mark = mark;
    if (stream->capture != nullptr) return cudaSuccess;  // an edge of the graph, not a node
    return emulator::Enqueue(runtime, stream, [mark] {
      mark->done = true;
      mark->when = std::chrono::steady_clock::now();
      return cudaSuccess;
    });
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call("cudaEventSynchronize", [&](Runtime& runtime) {
    if (!runtime.events.contains(event)) return cudaErrorInvalidResourceHandle;
    const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
    return unsafe != cudaSuccess ? unsafe : Reach(runtime, event->mark);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Call("cudaEventElapsedTime", [&](Runtime& runtime) {
    for (const cudaEvent_t event : {start, end}) {
      if (!runtime.events.contains(event)) return cudaErrorInvalidResourceHandle;
      if (event->mark == nullptr) return cudaErrorInvalidResourceHandle;
      if (!event->mark->done) return cudaErrorNotReady;
    }
    const std::chrono::duration<float, std::milli> time = end->mark->when - start->mark->when;
    *milliseconds = time.count();
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call("cudaEventQuery", [&](Runtime& runtime) {
    if (!runtime.events.contains(event)) return cudaErrorInvalidResourceHandle;
    const cudaError_t unsafe = emulator::CheckUnsafeCall(runtime);
    if (unsafe != cudaSuccess) return unsafe;
    if (event->mark == nullptr || event->mark->done) return cudaSuccess;
    const cudaError_t error = emulator::Progress(runtime, event->mark->stream);
    return error != cudaSuccess ? error : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int) {
  return Call("cudaStreamWaitEvent", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr || !runtime.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return WaitInCapture(stream, event);
    if (event->mark == nullptr || event->mark->done) return cudaSuccess;
    return emulator::Enqueue(runtime, stream,
                             [&runtime, mark = event->mark] { return Reach(runtime, mark); });
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return Call("cudaStreamBeginCapture", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream == &runtime.default_stream) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    ++runtime.captures;
    stream->capture = std::make_unique<emulator::Capture>(emulator::Capture{
        .nodes = {}, .mode = mode, .thread = std::this_thread::get_id(), .invalid = false});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return Call("cudaStreamEndCapture", [&](Runtime& runtime) {
    *graph = nullptr;
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture == nullptr) return cudaErrorIllegalState;
    if (stream->capture->mode != cudaStreamCaptureModeRelaxed &&
        stream->capture->thread != std::this_thread::get_id()) {
      return cudaErrorStreamCaptureWrongThread;
    }
    const std::unique_ptr<emulator::Capture> capture = std::move(stream->capture);
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    *graph = new CUgraph_st{std::make_shared<const emulator::Nodes>(std::move(capture->nodes))};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Call("cudaStreamIsCapturing", [&](Runtime& runtime) {
    const CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  return Call("cudaGraphInstantiate", [&](Runtime& runtime) {
    ++runtime.captures;
    *exec = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return Call("cudaGraphUpload", [](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return Call("cudaGraphLaunch", [&](Runtime& runtime) {
    CUstream_st* const stream = emulator::FindStream(runtime, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    // Runs them one after the other, so that each may wait.
    for (std::size_t i = 0; i < exec->nodes->size(); ++i) {
      const cudaError_t error =
          emulator::Enqueue(runtime, stream, [nodes = exec->nodes, i] { return (*nodes)[i](); });
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return Call("cudaGraphGetNodes", [&](Runtime&) {
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->nodes->size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
