#pragma once

#include <cstdint>
#include <map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/device_graph.h"
#include "base/stream.h"

namespace quire::runtime {

// The captured decode steps of a runner, by bucket of rows.
//
// Place:      part of CudaRunner.
// Invariants: memory that captures were seen to take stays within the share; beyond it nothing more
//             is captured.
// Threads:    the engine thread. Lifetime: what the graphs read and write outlives them.
class StepGraphs {
 public:
  StepGraphs(const Stream* stream, std::int64_t share_bytes)
      : stream_(stream), share_bytes_(share_bytes) {}

  // Null when there is none (yet).
  const DeviceGraph* Find(std::uint32_t bucket) const;
  // Captures what `enqueue` enqueues, unless the share is used up. A capture that fails is logged
  // once and ends capturing; only an error that IsDeviceLost is returned.
  absl::Status Capture(std::uint32_t bucket, absl::FunctionRef<absl::Status()> enqueue);

  std::uint32_t size() const { return static_cast<std::uint32_t>(graphs_.size()); }

 private:
  // No more captures, for the reason given.
  void Stop(const char* reason, const absl::Status& status);

  const Stream* stream_;
  const std::int64_t share_bytes_;
  std::int64_t used_bytes_ = 0;
  std::int64_t largest_bytes_ = 0;
  bool stopped_ = false;
  std::map<std::uint32_t, DeviceGraph> graphs_;
};

}  // namespace quire::runtime
