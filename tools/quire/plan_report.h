#pragma once

// Computes the memory plan of a model, for `quire plan` and `quire inspect`.
//
// Threads: any.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"

namespace CLI {
class App;
}

namespace quire::client {

struct PlanRequest {
  std::string model;          // directory or GGUF file
  std::string device_memory;  // GPU memory, such as "80GiB"; empty: plan for the CPU
  std::uint32_t num_sms = 132;
  server::ConfigSources sources = {};

  DeviceKind device() const { return device_memory.empty() ? DeviceKind::kCpu : DeviceKind::kCuda; }
};

struct PlanReport {
  std::vector<std::string> lines;  // human-readable
  nlohmann::json json;
};

// Adds the model, --device-memory, --sms, --config and --set. `request` must outlive the parsing.
void AddPlanOptions(CLI::App* command, PlanRequest* request);

// Returns the options that `quired` would have with the request's sources. Error messages of
// ReadOptions and MakePlan have one line per error.
absl::StatusOr<server::DaemonOptions> ReadOptions(const PlanRequest& request);

// Uses the configuration of `quired` with the same files, environment and --set.
absl::StatusOr<PlanReport> MakePlan(const PlanRequest& request);

}  // namespace quire::client
