// quire plan, make-model: what needs no server.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/checkpoint/model_files.h"
#include "server/config/device_plan.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"
#include "server/config/scalar_value.h"
#include "tools/quire/client.h"
#include "tools/quire/synthetic_model.h"
#include "tools/quire/synthetic_weights.h"

namespace quire::client {
namespace {

struct PlanOptions {
  bool cpu = false;
  std::string model;
  std::string device_memory;
  std::uint32_t num_sms = 132;
  server::ConfigSources sources;
};

int FailWith(absl::string_view text) {
  std::fprintf(stderr, "quire: %s\n", std::string(text).c_str());
  return kRequestFailed;
}

absl::StatusOr<server::DevicePlan> Plan(const PlanOptions& options,
                                        const server::DaemonOptions& daemon) {
  absl::StatusOr<std::int64_t> bytes = server::ParseBytes(options.device_memory);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--device-memory: ", bytes.status().message()));
  }
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFiles files,
                         models::ModelFiles::FromPath(options.model));
  return server::PlanDevice(daemon, files, *bytes, options.num_sms);
}

void PrintPlan(const server::DevicePlan& plan) {
  for (const auto& [name, bytes] : server::PlanLines(plan)) {
    std::printf("%-12s %15lld  %12.2f MiB%s\n", name.c_str(), static_cast<long long>(bytes),
                static_cast<double>(bytes) / (1 << 20), name == "pinned" ? " of the host" : "");
  }
  std::printf("%u pages of %u tokens (%s, %lld bytes each): %lld tokens, longest context %d\n",
              plan.memory.num_blocks - 1, plan.page_size,
              std::string(DTypeName(plan.kv_dtype)).c_str(),
              static_cast<long long>(plan.memory.page_bytes),
              static_cast<long long>(plan.pool_tokens()), plan.context_tokens);
}

void PrintPlanJson(const server::DevicePlan& plan) {
  nlohmann::json json;
  for (const auto& [name, bytes] : server::PlanLines(plan)) json[name + "_bytes"] = bytes;
  json["pages"] = plan.memory.num_blocks - 1;
  json["page_bytes"] = plan.memory.page_bytes;
  json["page_tokens"] = plan.page_size;
  json["kv_dtype"] = DTypeName(plan.kv_dtype);
  json["pool_tokens"] = plan.pool_tokens();
  json["max_context_tokens"] = plan.context_tokens;
  std::printf("%s\n", json.dump().c_str());
}

void PrintLine(absl::string_view name, std::int64_t bytes, absl::string_view what) {
  std::printf("%-12s %15lld  %12.2f MiB%s\n", std::string(name).c_str(),
              static_cast<long long>(bytes), static_cast<double>(bytes) / (1 << 20),
              std::string(what).c_str());
}

int RunCpuPlan(const CommonOptions& common, const PlanOptions& options,
               const server::DaemonOptions& daemon) {
  const auto files = models::ModelFiles::FromPath(options.model);
  if (!files.ok()) return FailWith(files.status().message());
  const absl::StatusOr<models::MemoryPlan> plan = server::PlanCpu(daemon, *files);
  if (!plan.ok()) return FailWith(plan.status().message());
  const bool has_pool = daemon.pool.capacity_bytes.has_value();
  if (common.json) {
    nlohmann::json json = {{"weights_bytes", plan->weight_bytes},
                           {"weight_format", plan->weight_format},
                           {"workspace_bytes", plan->workspace_bytes},
                           {"page_bytes", plan->page_bytes},
                           {"page_tokens", daemon.pool.page_size},
                           {"kv_dtype", DTypeName(daemon.pool.dtype)}};
    if (has_pool) json["kv_bytes"] = plan->pool_bytes;
    std::printf("%s\n", json.dump().c_str());
    return kOk;
  }
  PrintLine("weights", plan->weight_bytes,
            plan->weight_format == "none" ? ", unquantised"
                                          : absl::StrCat(", most as ", plan->weight_format));
  PrintLine("workspace", plan->workspace_bytes, "");
  if (has_pool) PrintLine("kv", plan->pool_bytes, "");
  PrintLine("page", plan->page_bytes,
            absl::StrCat(", ", daemon.pool.page_size, " tokens as ", DTypeName(daemon.pool.dtype)));
  return kOk;
}

// The configuration that `quired` with the same files, environment and --set would have on the
// device.
int RunPlan(const CommonOptions& common, PlanOptions options) {
  options.sources.sets.push_back(absl::StrCat("model.path=", options.model));
  options.sources.sets.push_back(options.cpu ? "device.type=cpu" : "device.type=cuda");
  options.sources.environment = server::ConfigEnvironment();
  options.sources.profile_dirs = server::InstalledProfileDirs();
  std::vector<std::string> errors;
  const auto config = server::LayeredConfig::Load(options.sources, &errors);
  for (const std::string& error : errors) FailWith(error);
  if (config == nullptr) return kRequestFailed;
  if (options.cpu) return RunCpuPlan(common, options, server::ToOptions(*config));
  const absl::StatusOr<server::DevicePlan> plan = Plan(options, server::ToOptions(*config));
  if (!plan.ok()) return FailWith(plan.status().message());
  if (common.json) {
    PrintPlanJson(*plan);
  } else {
    PrintPlan(*plan);
  }
  return kOk;
}

struct MakeOptions {
  std::string shape, directory, gguf;
  bool weights = false;
  std::uint64_t seed = 1;
};

absl::Status MakeModel(const MakeOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const ModelShape shape, FindShape(options.shape));
  // Before gigabytes are written.
  if (!options.gguf.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckGguf(shape, options.gguf));
  }
  QUIRE_RETURN_IF_ERROR(WriteSyntheticModel(options.shape, options.directory));
  if (options.weights) {
    QUIRE_RETURN_IF_ERROR(WriteSyntheticWeights(shape, options.seed, options.directory));
  }
  if (options.gguf.empty()) return absl::OkStatus();
  return WriteSyntheticGguf(shape, options.seed, options.gguf);
}

int RunMakeModel(const MakeOptions& options) {
  const absl::Status status = MakeModel(options);
  if (!status.ok()) return FailWith(status.message());
  std::printf("%s; serve it with: quired %s%s\n", options.directory.c_str(),
              options.directory.c_str(), options.weights ? "" : " --set model.load_mode=dummy");
  return kOk;
}

}  // namespace

void AddLocal(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan =
      app->add_subcommand("plan", "what a model needs of memory; loads nothing, needs no GPU");
  plan->add_option("--model", options->model, "model directory")->required();
  plan->add_option("--device-memory", options->device_memory,
                   "memory of the GPU that is free before the model is loaded, such as 80GiB");
  plan->add_flag("--cpu", options->cpu, "what it needs on the CPU instead");
  plan->add_option("--sms", options->num_sms, "multiprocessors of the GPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  plan->add_option("--config", options->sources.files, "as of quired, repeatable")
      ->allow_extra_args(false);
  plan->add_option("--set", options->sources.sets, "as of quired, repeatable")
      ->allow_extra_args(false);
  plan->callback([=] {
    *exit_code = options->cpu || !options->device_memory.empty()
                     ? RunPlan(*common, *options)
                     : FailWith("--device-memory is missing; give it, or --cpu");
  });

  auto make = std::make_shared<MakeOptions>();
  CLI::App* make_model = app->add_subcommand(
      "make-model",
      "files of a model without its weights, for model.load_mode dummy, or with random ones");
  make_model->add_option("--shape", make->shape, "llama-3.1-8b, tiny, llama-0.5b or llama-1.1b")
      ->required();
  make_model->add_option("--out", make->directory, "directory to write")->required();
  make_model->add_flag("--weights", make->weights, "random weights too (bf16, model.safetensors)");
  make_model->add_option("--gguf", make->gguf, "the same weights as a GGUF file of this name");
  make_model->add_option("--seed", make->seed, "weights are a function of it")
      ->capture_default_str();
  make_model->callback([=] { *exit_code = RunMakeModel(*make); });
}

}  // namespace quire::client
