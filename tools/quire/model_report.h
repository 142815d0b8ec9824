#pragma once

// Builds the report of `quire inspect` about the files of a model.
//
// Invariants: loads no weights and needs no GPU. If a part cannot be read, the report has a problem
//             instead.
// Threads:    any.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/quire/plan_report.h"

namespace quire::client {

struct ModelReport {
  std::vector<std::string> lines;  // human-readable
  nlohmann::ordered_json json;     // the same as JSON
  bool is_servable = false;        // no problems: quired can load it if the memory suffices
};

// If `request.device_memory` is set, plans for a GPU with that memory, otherwise for the CPU.
ModelReport InspectModel(const PlanRequest& request);

}  // namespace quire::client
