#include "server/config/device_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/request/engine_options.h"

namespace quire::server {
namespace {

std::int32_t ClampToInt(std::int64_t value) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(value, std::numeric_limits<std::int32_t>::max()));
}

models::DevicePlanOptions PlanOptions(const DaemonOptions& options, const DevicePlan& plan,
                                      std::uint32_t num_sms) {
  models::DevicePlanOptions request;
  request.page_size = plan.page_size;
  request.kv_dtype = plan.kv_dtype;
  request.device_memory_bytes = plan.free_bytes - plan.reserve_bytes;
  request.num_sms = num_sms;
  request.load_mode =
      options.model.dummy_weights ? models::LoadMode::kDummy : models::LoadMode::kReal;
  request.quantization = options.model.quantization;
  request.runner = plan.runner;
  return request;
}

// The pool that the configuration asks for; 0: as large as memory allows.
absl::StatusOr<std::uint32_t> ConfiguredBlocks(const DaemonOptions& options,
                                               const models::ModelSpec& spec) {
  if (!options.pool.capacity_bytes) return 0;
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                         models::KvGeometryFor(spec, options.pool.page_size, options.pool.dtype,
                                               /*num_blocks=*/2));
  absl::StatusOr<std::uint32_t> blocks =
      models::NumBlocksForBytes(geometry, *options.pool.capacity_bytes);
  if (blocks.ok()) return blocks;
  return absl::InvalidArgumentError(
      absl::StrCat("kv_cache.capacity_bytes: ", blocks.status().message()));
}

// The context that the pool holds; then the lookup table is planned again for the shorter one.
absl::Status CutContext(const DaemonOptions& options, const models::ModelFiles& files,
                        const cache::PageDemand& demand, models::DevicePlanOptions request,
                        DevicePlan* plan) {
  const std::int32_t longest =
      LongestSequence(demand, plan->memory.num_blocks - 1, plan->context_tokens);
  if (plan->context_tokens == longest) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(CheckContextFits(options.model, longest));
  plan->context_was_cut = true;
  plan->context_tokens = longest;
  plan->runner.max_context_tokens = static_cast<std::uint32_t>(plan->context_tokens);
  request.runner.max_context_tokens = plan->runner.max_context_tokens;
  request.num_blocks = plan->memory.num_blocks;
  QUIRE_ASSIGN_OR_RETURN(plan->memory, models::PlanDeviceMemory(files, request));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::int32_t> ContextTokens(const ModelOptions& options, std::int32_t own) {
  if (!options.max_context_tokens) return own;
  if (*options.max_context_tokens <= own) return *options.max_context_tokens;
  return absl::InvalidArgumentError(absl::StrCat("model.max_context_tokens is ",
                                                 *options.max_context_tokens,
                                                 ", the model's own context is ", own));
}

absl::Status CheckContextFits(const ModelOptions& options, std::int64_t longest) {
  const std::optional<std::int32_t> context = options.max_context_tokens;
  if (!context || *context <= longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.max_context_tokens is ", *context, ", the KV pool holds ", longest,
                   " tokens; lower it, or raise kv_cache.capacity_bytes"));
}

DType CudaActivationType(const DaemonOptions& options) {
  if (options.model.dtype) return *options.model.dtype;
  return options.pool.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

std::int32_t StepTokens(const engine::EngineOptions& engine, std::int32_t page_size) {
  const std::int64_t prompt = std::max(engine.max_step_prompt_tokens, page_size);
  return ClampToInt(
      std::min<std::int64_t>(engine.max_step_tokens, prompt + engine.max_running_sequences));
}

engine::EngineOptions GpuEngineOptions(engine::EngineOptions engine) {
  engine.max_step_prompt_tokens = engine.max_step_tokens;
  return engine;
}

std::uint32_t OverlapTokens(const DaemonOptions& options, DeviceKind device) {
  if (device == DeviceKind::kCpu) {
    return engine::MaxChunkTokens(options.engine, options.pool.page_size);
  }
  const engine::EngineOptions engine = GpuEngineOptions(options.engine);
  return engine::MaxChunkTokens(engine, options.pool.page_size) *
         static_cast<std::uint32_t>(engine.max_steps_in_flight);
}

cache::PageDemand PageDemandFor(const DaemonOptions& options, const models::LayerGroups& layers,
                                DeviceKind device) {
  return {options.pool.page_size, models::CacheGroupsOf(layers), OverlapTokens(options, device)};
}

absl::Status CheckHoldsAnything(const DaemonOptions& options, const cache::PageDemand& demand,
                                std::uint32_t num_blocks) {
  constexpr std::uint32_t kMinTokens = 2;
  const std::uint32_t needed = demand.PagesFor(kMinTokens);
  if (num_blocks > needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the KV pool has ", num_blocks - 1,
                   " usable pages, the shortest sequence needs ", needed,
                   options.pool.capacity_bytes
                       ? "; raise kv_cache.capacity_bytes"
                       : "; kv_cache.capacity_bytes is auto, and too little memory is free"));
}

std::int32_t LongestSequence(const cache::PageDemand& demand, std::uint32_t usable_pages,
                             std::int32_t most) {
  std::uint32_t fits = 0;  // more tokens never need fewer pages
  for (std::uint32_t end = static_cast<std::uint32_t>(most); fits < end;) {
    const std::uint32_t tokens = end - (end - fits) / 2;
    if (demand.PagesFor(tokens) <= usable_pages) {
      fits = tokens;
    } else {
      end = tokens - 1;
    }
  }
  return static_cast<std::int32_t>(fits);
}

std::int64_t UsefulBlocks(const DaemonOptions& options, const cache::PageDemand& demand,
                          std::int32_t context_tokens) {
  const auto pages =
      static_cast<std::int64_t>(demand.HistoryPages(static_cast<std::uint32_t>(context_tokens)));
  return pages * options.engine.max_running_sequences + 1;
}

absl::StatusOr<DevicePlan> PlanDevice(const DaemonOptions& options,
                                      const models::ModelFiles& files, std::int64_t free_bytes,
                                      std::uint32_t num_sms) {
  QUIRE_ASSIGN_OR_RETURN(const models::CheckedSpec model,
                         models::ReadModelSpec(files, DeviceKind::kCuda));
  DevicePlan plan;
  plan.free_bytes = free_bytes;
  plan.reserve_bytes = options.pool.capacity_bytes ? 0 : options.device.reserve_bytes;
  plan.page_size = options.pool.page_size;
  plan.kv_dtype = options.pool.dtype;
  const auto own = static_cast<std::int32_t>(model.spec.max_position);
  QUIRE_ASSIGN_OR_RETURN(plan.context_tokens, ContextTokens(options.model, own));
  const engine::EngineOptions engine = GpuEngineOptions(options.engine);
  plan.runner.max_rows = static_cast<std::uint32_t>(engine.max_running_sequences);
  plan.runner.max_step_tokens = static_cast<std::uint32_t>(
      StepTokens(engine, static_cast<std::int32_t>(options.pool.page_size)));
  plan.runner.max_logprobs = static_cast<std::uint32_t>(engine.limits.max_logprobs);
  plan.runner.has_text.assign(model.config.vocab_size, 1);
  plan.runner.activation = CudaActivationType(options);
  plan.runner.max_context_tokens = static_cast<std::uint32_t>(plan.context_tokens);
  plan.runner.graphs = options.cuda_graphs;

  if (plan.reserve_bytes >= free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device.reserve_bytes is ", plan.reserve_bytes, ", the GPU has ", free_bytes,
                     " bytes free"));
  }
  models::DevicePlanOptions request = PlanOptions(options, plan, num_sms);
  QUIRE_ASSIGN_OR_RETURN(request.num_blocks, ConfiguredBlocks(options, model.spec));
  QUIRE_ASSIGN_OR_RETURN(plan.memory, models::PlanDeviceMemory(files, request));
  const cache::PageDemand demand =
      PageDemandFor(options, plan.memory.layer_groups, DeviceKind::kCuda);
  const std::int64_t useful = UsefulBlocks(options, demand, plan.context_tokens);
  if (!options.pool.capacity_bytes && plan.memory.num_blocks > useful) {
    request.num_blocks = static_cast<std::uint32_t>(useful);
    QUIRE_ASSIGN_OR_RETURN(plan.memory, models::PlanDeviceMemory(files, request));
  }
  QUIRE_RETURN_IF_ERROR(CheckHoldsAnything(options, demand, plan.memory.num_blocks));
  QUIRE_RETURN_IF_ERROR(CutContext(options, files, demand, request, &plan));
  plan.sequence_pages = demand.PagesFor(static_cast<std::uint32_t>(plan.context_tokens));
  return plan;
}

absl::StatusOr<CpuPlan> PlanCpu(const DaemonOptions& options, const models::ModelFiles& files) {
  QUIRE_ASSIGN_OR_RETURN(const models::CheckedSpec model,
                         models::ReadModelSpec(files, DeviceKind::kCpu));
  const auto own = static_cast<std::int32_t>(model.spec.max_position);
  CpuPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.context_tokens, ContextTokens(options.model, own));
  const cache::PageDemand demand =
      PageDemandFor(options, models::PlanLayerGroups(model.spec), DeviceKind::kCpu);
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t blocks, ConfiguredBlocks(options, model.spec));
  if (options.pool.capacity_bytes) {
    QUIRE_RETURN_IF_ERROR(CheckHoldsAnything(options, demand, blocks));
    const std::int32_t longest = LongestSequence(demand, blocks - 1, plan.context_tokens);
    QUIRE_RETURN_IF_ERROR(CheckContextFits(options.model, longest));
    plan.context_tokens = longest;
  }
  plan.sequence_pages = demand.PagesFor(static_cast<std::uint32_t>(plan.context_tokens));
  models::RunnerOptions runner;
  runner.max_rows = static_cast<std::uint32_t>(options.engine.max_running_sequences);
  runner.max_step_tokens = static_cast<std::uint32_t>(
      StepTokens(options.engine, static_cast<std::int32_t>(options.pool.page_size)));
  runner.max_logprobs = static_cast<std::uint32_t>(options.engine.limits.max_logprobs);
  runner.has_text.assign(model.config.vocab_size, 1);
  QUIRE_ASSIGN_OR_RETURN(
      plan.memory,
      models::PlanMemory(files, options.pool.page_size, options.pool.dtype, std::max(blocks, 2u),
                         runner, options.model.quantization,
                         options.model.dummy_weights ? models::LoadMode::kDummy
                                                     : models::LoadMode::kReal));
  return plan;
}

std::vector<std::pair<std::string, std::int64_t>> PlanLines(const DevicePlan& plan) {
  const models::RunnerMemory& runner = plan.memory.runner;
  return {{"weights", plan.memory.weight_bytes},
          {"kv", plan.memory.pool_bytes},
          {"activations", runner.activation_bytes},
          {"attention", runner.attention_bytes},
          {"sampler", runner.sampler_bytes},
          {"linear", runner.linear_bytes},
          {"graphs", runner.graph_bytes},
          {"total", plan.memory.total_bytes()},
          {"reserve", plan.reserve_bytes},
          {"free", plan.free_bytes},
          {"pinned", runner.pinned_bytes}};
}

}  // namespace quire::server
