#include "tools/quire/plan_report.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"
#include "runtime/compute_device.h"
#include "runtime/device_plan.h"
#include "runtime/host_memory.h"
#include "server/config/options.h"
#include "server/config/per_device_options.h"
#include "server/config/scalar_value.h"
#include "tools/quire/spec_text.h"

namespace quire::client {
namespace {

std::string Line(absl::string_view name, std::int64_t bytes, absl::string_view what) {
  return absl::StrFormat("%-12s %15d  %12.2f MiB%s", name, bytes,
                         static_cast<double>(bytes) / (1 << 20), what);
}

// Adds the layer groups and the pages that a sequence needs. `Plan` is a MemoryPlan or a
// DeviceMemoryPlan.
template <typename Plan>
void AddLayers(const Plan& plan, std::uint32_t sequence_pages, std::int32_t context_tokens,
               PlanReport* report) {
  const models::LayerGroups& layers = plan.layer_groups;
  report->json["page_layers"] = layers.slots;
  report->json["layer_groups"] = nlohmann::json::array();
  for (const models::LayerGroup& group : layers.groups) {
    report->json["layer_groups"].push_back(
        {{"window_tokens", group.window}, {"layers", group.num_layers}});
  }
  report->json["sequence_pages"] = sequence_pages;
  report->json["max_context_tokens"] = context_tokens;
  report->lines.push_back(absl::StrCat("layers       ", DescribePages(layers)));
  report->lines.push_back(
      Line("sequence", sequence_pages * plan.page_bytes,
           absl::StrCat(", at most ", sequence_pages, " pages for ", context_tokens, " tokens")));
  if (layers.index_slots == 0) return;
  report->json["index_layers"] = layers.index_slots;
  report->json["page_index_bytes"] = plan.page_index_bytes;
  report->lines.push_back(Line("index rows", plan.page_index_bytes,
                               absl::StrCat(" of each page, for ", layers.index_slots,
                                            layers.index_slots == 1 ? " layer" : " layers")));
}

// Adds the slots of recurrent states. Their number is unknown if the pool has no given size and the
// weights do not fit into the free memory of this host.
void AddStates(const runtime::StatePlan& states, bool is_sized, PlanReport* report) {
  if (states.slot_bytes == 0) return;
  report->json["state_slot_bytes"] = states.slot_bytes;
  report->json["state_slot_tokens"] = states.slot_tokens;
  if (is_sized) {
    report->json["states_bytes"] = states.bytes();
    report->json["state_slots"] = states.num_slots - 1;
    report->json["state_snapshots"] = states.num_snapshots;
    report->json["max_running_sequences"] = states.max_rows;
    report->lines.push_back(
        Line("states", states.bytes(),
             absl::StrCat(", ", states.num_slots - 1, " slots, ", states.max_rows,
                          " of them for sequences, ", states.num_snapshots, " for snapshots")));
  }
  report->lines.push_back(
      Line("state slot", states.slot_bytes,
           absl::StrCat(", as much as ", states.slot_tokens, " tokens in pages")));
}

absl::StatusOr<PlanReport> PlanGpu(const PlanRequest& request, const server::DaemonOptions& daemon,
                                   const formats::ModelFiles& files) {
  const absl::StatusOr<std::int64_t> bytes = server::ParseBytes(request.device_memory);
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--device-memory: ", bytes.status().message()));
  }
  QUIRE_ASSIGN_OR_RETURN(const runtime::DevicePlan plan,
                         runtime::PlanDevice(server::RuntimeOptionsFor(daemon, DeviceKind::kCuda),
                                             files, *bytes, request.num_sms));
  PlanReport report;
  for (const auto& [name, part] : runtime::PlanLines(plan)) {
    if (name == "states") continue;  // AddStates reports them in more detail
    const bool on_host = name == "pinned" || name == "prefix_index";
    report.lines.push_back(Line(name, part, on_host ? " of host memory" : ""));
    report.json[name + "_bytes"] = part;
  }
  report.lines.push_back(absl::StrFormat("%d pages of %d tokens (%s, %d bytes each)",
                                         plan.memory.num_blocks - 1, plan.page_size,
                                         DTypeName(plan.kv_dtype), plan.memory.page_bytes));
  report.json["pages"] = plan.memory.num_blocks - 1;
  report.json["page_bytes"] = plan.memory.page_bytes;
  report.json["page_tokens"] = plan.page_size;
  report.json["kv_dtype"] = DTypeName(plan.kv_dtype);
  AddStates(plan.states, /*is_sized=*/true, &report);
  AddLayers(plan.memory, plan.sequence_pages, plan.context_tokens, &report);
  return report;
}

absl::StatusOr<PlanReport> PlanHost(const server::DaemonOptions& daemon,
                                    const formats::ModelFiles& files) {
  // The instruction set determines the type of activations, and thus the size of the workspace.
  QUIRE_RETURN_IF_ERROR(runtime::SelectIsa(daemon.device));
  const std::int64_t free_bytes = runtime::FreeHostMemory();
  QUIRE_ASSIGN_OR_RETURN(
      const runtime::CpuPlan cpu,
      runtime::PlanCpu(server::RuntimeOptionsFor(daemon, DeviceKind::kCpu), files, free_bytes));
  const runtime::MemoryPlan& plan = cpu.memory;
  PlanReport report;
  report.json = {{"weights_bytes", plan.weight_bytes},
                 {"weight_format", plan.weight_format},
                 {"activations", kernels::CpuActivationsName(plan.activations)},
                 {"workspace_bytes", plan.workspace_bytes},
                 {"page_bytes", plan.page_bytes},
                 {"page_tokens", daemon.pool.page_size},
                 {"kv_dtype", DTypeName(daemon.pool.dtype)}};
  report.lines.push_back(Line("weights", plan.weight_bytes,
                              plan.weight_format == "none"
                                  ? ", unquantized"
                                  : absl::StrCat(", mostly ", plan.weight_format)));
  report.lines.push_back(
      absl::StrCat("activations  ", kernels::CpuActivationsName(plan.activations)));
  report.lines.push_back(Line("workspace", plan.workspace_bytes, ""));
  if (daemon.pool.capacity_bytes) {
    report.json["kv_bytes"] = plan.pool_bytes;
    report.json["prefix_index_bytes"] = plan.prefix_index_bytes;
    report.lines.push_back(Line("kv", plan.pool_bytes, ""));
    report.lines.push_back(Line("prefix_index", plan.prefix_index_bytes, ""));
  }
  report.lines.push_back(
      Line("page", plan.page_bytes,
           absl::StrCat(", ", daemon.pool.page_size, " tokens as ", DTypeName(daemon.pool.dtype))));
  AddStates(cpu.states, daemon.pool.capacity_bytes || plan.weight_bytes <= free_bytes, &report);
  AddLayers(plan, cpu.sequence_pages, cpu.context_tokens, &report);
  return report;
}

}  // namespace

void AddPlanOptions(CLI::App* command, PlanRequest* request) {
  command
      ->add_option("model", request->model,
                   "model directory, GGUF file or name of a downloaded model")
      ->required();
  command->add_option("--device-memory", request->device_memory,
                      "plan for a GPU with this much free memory, such as 80GiB (default: plan for "
                      "the CPU)");
  command->add_option("--sms", request->num_sms, "number of multiprocessors of the GPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--config", request->sources.files, "same as --config of quired, repeatable")
      ->allow_extra_args(false);
  command->add_option("--set", request->sources.sets, "same as --set of quired, repeatable")
      ->allow_extra_args(false);
}

absl::StatusOr<server::DaemonOptions> ReadOptions(const PlanRequest& request) {
  server::ConfigSources sources = request.sources;
  sources.model = request.model;
  sources.sets.emplace_back(request.device() == DeviceKind::kCpu ? "device.type=cpu"
                                                                 : "device.type=cuda");
  sources.environment = server::ConfigEnvironment();
  sources.profile_dirs = server::InstalledProfileDirs();
  std::vector<std::string> errors;
  const auto config = server::LayeredConfig::Load(sources, &errors);
  if (config == nullptr) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  return server::ToOptions(*config);
}

absl::StatusOr<PlanReport> MakePlan(const PlanRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const server::DaemonOptions daemon, ReadOptions(request));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files,
                         formats::ModelFiles::FromPath(daemon.model.path));
  return request.device() == DeviceKind::kCpu ? PlanHost(daemon, files)
                                              : PlanGpu(request, daemon, files);
}

}  // namespace quire::client
