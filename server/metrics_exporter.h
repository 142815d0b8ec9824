#pragma once

// Metrics of the process and the build, read at scrape time, and the model's memory and load times.
//
// Place:      called by the daemon. The registry prints the metrics, and the operators' listener
//             serves them.
// Threads:    callbacks run on scraping threads and read only atomics and /proc/self.
// Lifetime:   the state outlives the registry's last scrape.

#include "absl/time/time.h"
#include "base/probe.h"
#include "server/api/serving_state.h"
#include "server/engine_stack.h"

namespace quire::server {

// Exports quire_build_info, quire_health_state, the numbers of suppressed and dropped log lines,
// and the standard process_* metrics.
void ExportProcess(const ServingState* state, absl::Time start_time, probe::Registry* registry);

// Exports quire_device_memory_bytes and quire_model_load_seconds. Called once, when the model is
// loaded.
void ExportModel(const EngineStack& stack, probe::Registry* registry);

}  // namespace quire::server
