#include "base/device_graph.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"
#ifdef QUIRE_HAS_CUDA
#include <cuda_runtime_api.h>

#include "base/cuda_status.h"
#endif

namespace quire {

#ifdef QUIRE_HAS_CUDA
namespace {

// The executable graph and its number of operations.
using Executable = std::pair<cudaGraphExec_t, std::int64_t>;

absl::StatusOr<Executable> Instantiate(cudaGraph_t graph) {
  std::size_t nodes = 0;
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaGraphGetNodes(graph, nullptr, &nodes),
                                   "cannot count the operations of a captured graph"));
  cudaGraphExec_t exec = nullptr;
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaGraphInstantiate(&exec, graph, 0), "cannot instantiate a captured graph"));
  return Executable(exec, static_cast<std::int64_t>(nodes));
}

}  // namespace

absl::StatusOr<DeviceGraph> DeviceGraph::Capture(const Stream& stream,
                                                 absl::FunctionRef<absl::Status()> enqueue) {
  QUIRE_CHECK(stream.cuda() != nullptr);
  // In this mode, other threads may allocate and synchronize during the capture.
  QUIRE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal),
                 "cannot start the capture of a graph"));
  const absl::Status enqueued = enqueue();
  cudaGraph_t graph = nullptr;
  const absl::Status ended =
      CudaStatus(cudaStreamEndCapture(stream.cuda(), &graph), "cannot end the capture of a graph");
  if (!ended.ok()) return enqueued.ok() ? ended : enqueued;
  const absl::StatusOr<Executable> executable =
      enqueued.ok() ? Instantiate(graph) : absl::StatusOr<Executable>(enqueued);
  (void)cudaGraphDestroy(graph);
  QUIRE_RETURN_IF_ERROR(executable.status());
  DeviceGraph captured(executable->first, executable->second);
  // Uploading allocates the graph's device memory now. Otherwise the first launch would allocate
  // that memory, and the memory plan would not count it.
  QUIRE_RETURN_IF_ERROR(CudaStatus(cudaGraphUpload(captured.graph_, stream.cuda()),
                                   "cannot upload a captured graph"));
  return captured;
}

DeviceGraph::~DeviceGraph() {
  if (graph_ == nullptr) return;
  (void)cudaGraphExecDestroy(graph_);
  (void)cudaGetLastError();
}

absl::Status DeviceGraph::Launch(const Stream& stream) const {
  QUIRE_CHECK(graph_ != nullptr && stream.cuda() != nullptr);
  return CudaStatus(cudaGraphLaunch(graph_, stream.cuda()), "cannot launch a captured graph");
}

#else

absl::StatusOr<DeviceGraph> DeviceGraph::Capture(const Stream&, absl::FunctionRef<absl::Status()>) {
  return absl::UnimplementedError(
      "captured graphs need a build with CUDA; this build has none (QUIRE_CUDA=OFF)");
}

DeviceGraph::~DeviceGraph() = default;

absl::Status DeviceGraph::Launch(const Stream&) const {
  QUIRE_CHECK(graph_ != nullptr);
  return absl::OkStatus();
}

#endif

DeviceGraph::DeviceGraph(DeviceGraph&& other) noexcept
    : graph_(std::exchange(other.graph_, nullptr)), num_nodes_(other.num_nodes_) {}

DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  std::swap(num_nodes_, other.num_nodes_);
  return *this;
}

}  // namespace quire
