#pragma once

// The memory plan of a model for people and for programs: what `quire plan` prints, and `quire
// inspect` as a part of its report.
//
// Threads: none of its own.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"

namespace CLI {
class App;
}

namespace quire::client {

struct PlanRequest {
  std::string model;          // a directory, or a GGUF file
  bool cpu = false;           // else a GPU
  std::string device_memory;  // of the GPU, such as "80GiB"
  std::uint32_t num_sms = 132;
  server::ConfigSources sources = {};
};

struct PlanReport {
  std::vector<std::string> lines;
  nlohmann::json json;
};

// --device-memory, --sms, --config and --set. `request` outlives the parsing.
void AddPlanOptions(CLI::App* command, PlanRequest* request);

// What `quired` would make of the request's sources. Every line of an error's message is one of its
// own, here and below.
absl::StatusOr<server::DaemonOptions> ReadOptions(const PlanRequest& request);

// The configuration is that of `quired` with the same files, environment and --set.
absl::StatusOr<PlanReport> MakePlan(const PlanRequest& request);

}  // namespace quire::client
