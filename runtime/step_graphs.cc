#include "runtime/step_graphs.h"

#include <algorithm>
#include <utility>

#include "base/device.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/status.h"

namespace quire::runtime {

const DeviceGraph* StepGraphs::Find(std::uint32_t bucket) const {
  const auto it = graphs_.find(bucket);
  return it == graphs_.end() ? nullptr : &it->second;
}

void StepGraphs::StopCapturing(const char* reason, const absl::Status& status) {
  stopped_ = true;
  log::Warn("model", "no more decode graphs are captured",
            {{"reason", reason},
             {"error", status.message()},
             {"graphs", graphs_.size()},
             {"bytes", used_bytes_},
             {"share_bytes", share_bytes_}});
}

absl::Status StepGraphs::Capture(std::uint32_t bucket, absl::FunctionRef<absl::Status()> enqueue) {
  if (stopped_ || graphs_.contains(bucket)) return absl::OkStatus();
  if (used_bytes_ + largest_bytes_ > share_bytes_) {
    StopCapturing("their share of memory is used up", absl::OkStatus());
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t before, FreeDeviceMemory(stream_->device()));
  absl::StatusOr<DeviceGraph> graph = DeviceGraph::Capture(*stream_, enqueue);
  if (!graph.ok()) {
    if (HasReason(graph.status(), Reason::kDeviceLost)) return graph.status();
    StopCapturing("a capture failed", graph.status());
    return absl::OkStatus();
  }
  graphs_.emplace(bucket, *std::move(graph));
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t after, FreeDeviceMemory(stream_->device()));
  const std::int64_t graph_bytes = std::max<std::int64_t>(before - after, 0);
  used_bytes_ += graph_bytes;
  largest_bytes_ = std::max(largest_bytes_, graph_bytes);
  return absl::OkStatus();
}

}  // namespace quire::runtime
