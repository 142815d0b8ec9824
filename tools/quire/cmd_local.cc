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

// The configuration that `quired` with the same files, environment and --set would have on a GPU.
int RunPlan(const CommonOptions& common, PlanOptions options) {
  options.sources.sets.push_back(absl::StrCat("model.path=", options.model));
  options.sources.sets.push_back("device.type=cuda");
  options.sources.environment = server::ConfigEnvironment();
  options.sources.profile_dirs = server::InstalledProfileDirs();
  std::vector<std::string> errors;
  const auto config = server::LayeredConfig::Load(options.sources, &errors);
  for (const std::string& error : errors) FailWith(error);
  if (config == nullptr) return kRequestFailed;
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
  CLI::App* plan = app->add_subcommand("plan", "what a model needs of a GPU's memory; needs no GPU");
  plan->add_option("--model", options->model, "model directory")->required();
  plan->add_option("--device-memory", options->device_memory,
                   "memory of the GPU that is free before the model is loaded, such as 80GiB")
      ->required();
  plan->add_option("--sms", options->num_sms, "multiprocessors of the GPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  plan->add_option("--config", options->sources.files, "as of quired, repeatable")
      ->allow_extra_args(false);
  plan->add_option("--set", options->sources.sets, "as of quired, repeatable")
      ->allow_extra_args(false);
  plan->callback([=] { *exit_code = RunPlan(*common, *options); });

  auto make = std::make_shared<MakeOptions>();
  CLI::App* make_model = app->add_subcommand(
      "make-model", "files of a model without its weights, for model.load_mode dummy, or with random ones");
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
