#pragma once

// The metric families of the engine (docs/metrics.md).
//
// Place:      updated by the engine thread, RequestIntake and the output workers; read by the
//             scrapes of the registry.
// Invariants: the invariants of its parts hold.
// Threads:    the header of each part states them.
// Lifetime:   the registry outlives it.

#include <cstdint>
#include <memory>
#include <string>

#include "base/probe.h"
#include "engine/request/answer_probe.h"
#include "engine/request/cache_probe.h"
#include "engine/request/request_probe.h"
#include "engine/request/step_probe.h"

namespace quire::engine {

struct EngineProbe {
  struct Options {
    std::string model_name;
    std::int32_t max_context_tokens = 0;
    std::uint32_t page_size = 0;
    std::uint32_t num_pages = 0;
    std::string kv_dtype;
  };
  // If `the_registry` is null, the probe creates a registry.
  EngineProbe(probe::Registry* the_registry, const Options& options);

  const std::unique_ptr<probe::Registry> own_registry;
  probe::Registry* const registry;
  RequestProbe requests;
  AnswerProbe answers;
  StepProbe steps;
  CacheProbe cache;
};

}  // namespace quire::engine
