#pragma once

#include <cstdint>
#include <map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/device_graph.h"
#include "base/stream.h"

namespace quire::runtime {

// The captured decode steps of a runner, by bucket (GraphBucket).
//
// Place:      part of CudaRunner.
// Invariants: a graph is captured only if share_bytes still has room for a graph of the largest
//             size that was measured so far.
// Threads:    one at a time: the thread of CudaRunner::Create, then the engine thread.
// Lifetime:   the memory that the graphs read and write must outlive them.
class StepGraphs {
 public:
  StepGraphs(const Stream* stream, std::int64_t share_bytes)
      : stream_(stream), share_bytes_(share_bytes) {}

  // Returns the graph of a bucket, or null if it has not been captured.
  const DeviceGraph* Find(std::uint32_t bucket) const;
  // Captures the work that `enqueue` enqueues, unless capturing has stopped. A failed capture is
  // logged and stops capturing. Returns an error only if the device was lost or its free memory
  // cannot be read.
  absl::Status Capture(std::uint32_t bucket, absl::FunctionRef<absl::Status()> enqueue);

  std::uint32_t size() const { return static_cast<std::uint32_t>(graphs_.size()); }
  std::int64_t used_bytes() const { return used_bytes_; }

 private:
  // Stops capturing and logs the reason.
  void StopCapturing(const char* reason, const absl::Status& status);

  const Stream* stream_;
  const std::int64_t share_bytes_;
  std::int64_t used_bytes_ = 0;
  std::int64_t largest_bytes_ = 0;
  bool stopped_ = false;
  std::map<std::uint32_t, DeviceGraph> graphs_;
};

}  // namespace quire::runtime
