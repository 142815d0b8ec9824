#pragma once

// What the files of a model say: what `quire inspect` prints.
//
// Invariants: nothing is loaded and nothing needs a GPU. A part that cannot be read is missing from
//             the report, and why stands among its problems.
// Threads:    none of its own.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/quire/plan_report.h"

namespace quire::client {

struct ModelReport {
  std::vector<std::string> lines;  // for people
  nlohmann::ordered_json json;     // the same for programs
  bool is_servable = false;        // no problem: quired would load it, memory permitting
};

// The plan is that of the GPU with `request.device_memory`, or of the CPU without one.
ModelReport InspectModel(const PlanRequest& request);

}  // namespace quire::client
