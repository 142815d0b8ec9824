#pragma once

// Metric families about the process and the build, read at scrape time; the model's memory and load
// times.
//
// Place:      called by the daemon; the registry prints, HttpListener serves.
// Threads:    callbacks run on scraping threads and read only atomics and /proc/self.
// Lifetime:   the state outlives the registry's last scrape.

#include "absl/time/time.h"
#include "base/probe.h"
#include "server/api/serving_state.h"
#include "server/engine_stack.h"

namespace quire::server {

// build_info, health_state, log lines suppressed and dropped, and the standard process_* families.
void ExportProcess(const ServingState* state, absl::Time start_time, probe::Registry* registry);

// device_memory_bytes and model_load_seconds; once, when the model is loaded.
void ExportModel(const EngineStack& stack, probe::Registry* registry);

}  // namespace quire::server
