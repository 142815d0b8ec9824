// quire inspect, plan, make-model: commands that need no server.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/json_text.h"
#include "base/status.h"
#include "tools/quire/client.h"
#include "tools/quire/model_report.h"
#include "tools/quire/plan_report.h"
#include "tools/quire/synthetic_model.h"
#include "tools/quire/synthetic_weights.h"

namespace quire::client {
namespace {

int RunPlan(const CommonOptions& common, const PlanRequest& request) {
  const absl::StatusOr<PlanReport> plan = MakePlan(request);
  if (!plan.ok()) {
    for (const absl::string_view line : absl::StrSplit(plan.status().message(), '\n')) {
      std::fprintf(stderr, "quire: %s\n", std::string(line).c_str());
    }
    return kRequestFailed;
  }
  if (common.json) {
    std::printf("%s\n", JsonText(plan->json).c_str());
  } else {
    const bool is_cpu = request.device() == DeviceKind::kCpu;
    std::printf(
        "%s\n%s\n",
        is_cpu ? "plan for the CPU; --device-memory SIZE plans for a GPU" : "plan for a GPU",
        absl::StrJoin(plan->lines, "\n").c_str());
  }
  return kOk;
}

int RunInspect(const CommonOptions& common, const PlanRequest& request) {
  const ModelReport report = InspectModel(request);
  if (common.json) {
    std::printf("%s\n", JsonText(report.json).c_str());
  } else {
    std::printf("%s\n", absl::StrJoin(report.lines, "\n").c_str());
  }
  return report.is_servable ? kOk : kRequestFailed;
}

struct MakeOptions {
  std::string shape, directory, gguf;
  bool weights = false;
  std::uint64_t seed = 1;
};

absl::Status MakeModel(const MakeOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const ModelShape shape, FindShape(options.shape));
  // The path of the GGUF file is checked first, because the other files can have gigabytes.
  if (!options.gguf.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckCanWriteGguf(shape, options.gguf));
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
  if (!status.ok()) return FailWith(status, kRequestFailed);
  std::printf("%s; serve it with: quired %s%s\n", options.directory.c_str(),
              options.directory.c_str(), options.weights ? "" : " --set model.load_mode=dummy");
  return kOk;
}

}  // namespace

void AddLocal(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto inspected = std::make_shared<PlanRequest>();
  CLI::App* inspect = app->add_subcommand(
      "inspect", "describe the files of a model: layers, weights, tokenizer, memory, ignored keys");
  AddPlanOptions(inspect, inspected.get());
  inspect->callback([=] { *exit_code = RunInspect(*common, *inspected); });

  auto request = std::make_shared<PlanRequest>();
  CLI::App* plan = app->add_subcommand(
      "plan", "compute the memory plan of a model without loading it; needs no GPU");
  AddPlanOptions(plan, request.get());
  plan->callback([=] { *exit_code = RunPlan(*common, *request); });

  auto make = std::make_shared<MakeOptions>();
  CLI::App* make_model =
      app->add_subcommand("make-model", "write a synthetic model; --weights adds random weights");
  make_model
      ->add_option("--shape", make->shape,
                   "llama-3.1-8b, tiny, llama-0.5b, llama-1.1b, qwen3.5-4b or qwen3.5-4b-quarter")
      ->required();
  make_model->add_option("--out", make->directory, "directory to write")->required();
  make_model->add_flag("--weights", make->weights,
                       "also write random weights (bf16, model.safetensors)");
  make_model->add_option("--gguf", make->gguf, "also write the weights as this GGUF file");
  make_model->add_option("--seed", make->seed, "seed of the weights")->capture_default_str();
  make_model->callback([=] { *exit_code = RunMakeModel(*make); });
}

}  // namespace quire::client
