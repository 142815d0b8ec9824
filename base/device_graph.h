#pragma once

// A CUDA graph: work that is captured once and launched many times as one unit.

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/stream.h"

struct CUgraphExec_st;

namespace quire {

// Threads: one at a time. Lifetime: move-only; the memory that the captured kernels access must
// outlive the graph.
class DeviceGraph {
 public:
  // Calls `enqueue` and records the work that it enqueues, without running the work. `enqueue` may
  // enqueue on `stream` only. Returns the error of `enqueue` or of CudaStatus. The stream remains
  // usable even after an error.
  // REQUIRES: a CUDA stream.
  static absl::StatusOr<DeviceGraph> Capture(const Stream& stream,
                                             absl::FunctionRef<absl::Status()> enqueue);

  DeviceGraph(DeviceGraph&& other) noexcept;
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;
  ~DeviceGraph();

  // Enqueues the captured work.
  absl::Status Launch(const Stream& stream) const;
  std::int64_t num_nodes() const { return num_nodes_; }

 private:
  DeviceGraph(CUgraphExec_st* graph, std::int64_t num_nodes)
      : graph_(graph), num_nodes_(num_nodes) {}

  CUgraphExec_st* graph_ = nullptr;
  std::int64_t num_nodes_ = 0;
};

}  // namespace quire
