#pragma once

// The set of output workers without room, as last reported by the engine. Their requests must not
// run.
//
// Place:      part of Scheduler; read by Admission.
// Threads:    engine thread only.
// Lifetime:   a value.

#include <cstddef>
#include <vector>

#include "engine/scheduler/scheduled_request.h"

namespace quire::engine {

class OutputStalls {
 public:
  void SetWorker(std::size_t worker, bool is_stalled) {
    if (worker >= workers_.size()) workers_.resize(worker + 1, false);
    workers_[worker] = is_stalled;
  }
  // Returns whether the output worker of the request is stalled.
  bool IsWorkerStalled(const ScheduledRequest& request) const {
    const std::size_t worker = request.accepted->output_worker;
    return worker < workers_.size() && workers_[worker];
  }

 private:
  std::vector<bool> workers_;
};

}  // namespace quire::engine
