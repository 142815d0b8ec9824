#include "runtime/device_plan.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/compute_device.h"

namespace quire::runtime {
namespace {

// Returns model.max_context_tokens or, if it is not set, the model's own context. Returns
// INVALID_ARGUMENT if the key is larger than the model's own context.
absl::StatusOr<std::int32_t> ContextTokens(const ModelOptions& options, std::int32_t own) {
  if (!options.max_context_tokens) return own;
  if (*options.max_context_tokens <= own) return *options.max_context_tokens;
  return absl::InvalidArgumentError(absl::StrCat("model.max_context_tokens is ",
                                                 *options.max_context_tokens,
                                                 ", the model's own context is ", own));
}

// Returns INVALID_ARGUMENT if model.max_context_tokens is more than the longest sequence that a
// pool holds.
absl::Status CheckContextFits(const ModelOptions& options, std::int64_t longest) {
  const std::optional<std::int32_t> context = options.max_context_tokens;
  if (!context || *context <= longest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.max_context_tokens is ", *context, ", the KV pool holds ", longest,
                   " tokens; lower it, or raise kv_cache.capacity_bytes"));
}

// Returns the page demand of a sequence with these layer groups. Groups with windows release pages,
// so they need fewer than one page per page_size tokens.
cache::PageDemand PageDemandFor(const RuntimeOptions& options, const models::LayerGroups& layers) {
  return {options.pool.page_size, models::CacheGroupsOf(layers), options.steps.max_overlap_tokens};
}

// Returns the maximum number of blocks of an automatic pool. It holds the null page and the whole
// histories of `max_rows` sequences of this context, including pages that windows release. More
// pages would only cache more prefixes.
std::int64_t UsefulBlocks(std::uint32_t max_rows, const cache::PageDemand& demand,
                          std::int32_t context_tokens) {
  const auto pages =
      static_cast<std::int64_t>(demand.HistoryPages(static_cast<std::uint32_t>(context_tokens)));
  return pages * max_rows + 1;
}

// Returns the geometry of the smallest pool.
absl::StatusOr<cache::KvGeometry> SmallestGeometry(const RuntimeOptions& options,
                                                   const models::ModelSpec& spec) {
  return KvGeometryFor(spec, options.pool.page_size, options.pool.dtype, /*num_blocks=*/2);
}

DevicePlanOptions PlanOptions(const RuntimeOptions& options, const DevicePlan& plan,
                              std::uint32_t num_sms) {
  DevicePlanOptions request;
  request.page_size = plan.page_size;
  request.kv_dtype = plan.kv_dtype;
  request.prefix_caching = options.pool.prefix_caching;
  request.device_memory_bytes = plan.free_bytes - plan.reserve_bytes;
  request.num_sms = num_sms;
  request.determinism = DeterminismOf(options.device);
  request.load_mode = LoadModeOf(options.model);
  request.quantization = options.model.quantization;
  request.runner = plan.runner;
  return request;
}

// Returns the number of blocks that fit into kv_cache.capacity_bytes besides `state_bytes` of
// recurrent states. If the key is not set, returns 0: the pool is then as large as memory allows.
absl::StatusOr<std::uint32_t> ConfiguredBlocks(const RuntimeOptions& options,
                                               const models::ModelSpec& spec,
                                               std::int64_t state_bytes) {
  if (!options.pool.capacity_bytes) return 0;
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry, SmallestGeometry(options, spec));
  absl::StatusOr<std::uint32_t> blocks =
      NumBlocksForBytes(geometry, *options.pool.capacity_bytes - state_bytes);
  if (blocks.ok()) {
    return static_cast<std::uint32_t>(
        std::min<std::int64_t>(*blocks, MaxNumBlocks(spec, geometry)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kv_cache.capacity_bytes", state_bytes == 0 ? "" : " minus the recurrent states",
                   ": ", blocks.status().message()));
}

// Returns the number of bytes for the pages and the recurrent states of a host.
std::int64_t HostPoolBytes(const RuntimeOptions& options, std::int64_t free_bytes) {
  if (options.pool.capacity_bytes) return *options.pool.capacity_bytes;
  return static_cast<std::int64_t>(options.pool.memory_share * static_cast<double>(free_bytes));
}

// Returns the beginning of a message, which states how the size of an automatic pool was chosen.
std::string AutomaticPoolText(const RuntimeOptions& options, std::int64_t free_bytes) {
  return absl::StrCat("kv_cache.capacity_bytes is auto, ", free_bytes,
                      " bytes of memory are free and device.cpu.kv_memory_share is ",
                      options.pool.memory_share, ": ");
}

// Returns the request that divides `kv_bytes` between state slots and pages.
StatePlanRequest StateRequest(const RuntimeOptions& options, std::int64_t slot_bytes,
                              std::int64_t page_bytes, std::int64_t kv_bytes) {
  return {.slot_bytes = slot_bytes,
          .kv_bytes = kv_bytes,
          .share = options.pool.prefix_caching ? options.pool.state_share : 0,
          .max_rows = options.steps.max_rows,
          .may_lower_rows = options.steps.may_lower_rows,
          .page_bytes = page_bytes,
          .page_size = options.pool.page_size};
}

absl::StatusOr<StatePlan> PlanHostStates(const RuntimeOptions& options, const CpuPool& pool,
                                         std::int64_t pool_bytes) {
  return PlanStateSlots(
      StateRequest(options, pool.layers.state_bytes, pool.geometry.page_bytes(), pool_bytes));
}

// Plans the state slots of a GPU. Their memory is part of kv_cache.capacity_bytes. If that key is
// not set, pages and slots share the memory that the other parts of the plan leave.
absl::StatusOr<StatePlan> PlanDeviceStates(const RuntimeOptions& options,
                                           const models::ModelSpec& spec,
                                           const formats::ModelFiles& files,
                                           std::int32_t context_tokens, DevicePlanOptions request) {
  constexpr std::uint32_t kFewestSlots = 2;
  const models::LayerGroups layers = models::PlanLayerGroups(spec);
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry, SmallestGeometry(options, spec));
  StatePlanRequest states = StateRequest(options, layers.state_bytes, geometry.page_bytes(),
                                         options.pool.capacity_bytes.value_or(0));
  if (layers.state_bytes > 0 && !options.pool.capacity_bytes) {
    states.max_pages =
        UsefulBlocks(options.steps.max_rows, PageDemandFor(options, layers), context_tokens);
    request.runner.num_state_slots = kFewestSlots;
    QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryPlan all, PlanDeviceMemory(files, request));
    states.kv_bytes = all.device_memory_bytes - all.total_bytes() +
                      all.num_blocks * all.page_bytes + all.runner.state_bytes;
  }
  return PlanStateSlots(states);
}

// Returns the number of blocks that fit into the free memory of a host, prefix index included.
absl::StatusOr<std::uint32_t> FreeHostBlocks(const RuntimeOptions& options, const CpuPool& pool,
                                             std::int64_t free_bytes) {
  const std::int64_t share = HostPoolBytes(options, free_bytes) - pool.states.bytes();
  absl::StatusOr<std::uint32_t> fit = NumBlocksWithIndex(
      {.geometry = pool.geometry,
       .groups = models::CacheGroupsOf(pool.layers),
       .max_rows = pool.states.max_rows,
       .max_context_tokens = static_cast<std::uint32_t>(pool.wanted_context_tokens),
       .prefix_caching = options.pool.prefix_caching},
      share);
  if (fit.ok()) return fit;
  return absl::ResourceExhaustedError(
      absl::StrCat(AutomaticPoolText(options, free_bytes), fit.status().message()));
}

// Plans the state slots of a pool for max_rows sequences and the minimum number of snapshots.
absl::StatusOr<StatePlan> SmallestStates(const RuntimeOptions& options,
                                         const models::ModelSpec& spec) {
  CpuPool pool;
  pool.layers = models::PlanLayerGroups(spec);
  QUIRE_ASSIGN_OR_RETURN(pool.geometry, SmallestGeometry(options, spec));
  RuntimeOptions smallest = options;
  smallest.pool.state_share = 0;
  const std::int64_t enough = 2 * (options.steps.max_rows + 4) * pool.layers.state_bytes;
  return PlanHostStates(smallest, pool, enough + 2 * pool.geometry.page_bytes());
}

absl::StatusOr<MemoryPlan> PlanHostMemory(const RuntimeOptions& options,
                                          const formats::ModelFiles& files,
                                          std::uint32_t vocab_size, std::uint32_t num_blocks,
                                          const CpuPlan& plan) {
  RunnerOptions runner = RunnerOptionsFor(options, plan.context_tokens);
  runner.has_text.assign(vocab_size, 1);
  runner.max_rows = plan.states.max_rows;
  runner.num_state_slots = plan.states.num_slots;
  return PlanMemory(files, {.page_size = options.pool.page_size,
                            .kv_dtype = options.pool.dtype,
                            .num_blocks = num_blocks,
                            .prefix_caching = options.pool.prefix_caching,
                            .load_mode = LoadModeOf(options.model),
                            .quantization = options.model.quantization,
                            .fp8_activations = options.model.fp8_activations,
                            .activations = options.device.activations,
                            .num_threads = NumThreads(options.device),
                            .runner = std::move(runner)});
}

// Limits the context to the longest sequence that the pool holds, and plans the memory again,
// because a shorter context needs a smaller page table.
absl::Status CutContext(const RuntimeOptions& options, const formats::ModelFiles& files,
                        const cache::PageDemand& demand, DevicePlanOptions request,
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
  QUIRE_ASSIGN_OR_RETURN(plan->memory, PlanDeviceMemory(files, request));
  return absl::OkStatus();
}

}  // namespace

LoadMode LoadModeOf(const ModelOptions& options) {
  return options.dummy_weights ? LoadMode::kDummy : LoadMode::kReal;
}

kernels::Determinism DeterminismOf(const DeviceOptions& options) {
  if (options.determinism == "strict") return kernels::Determinism::kStrict;
  if (options.determinism == "fast") return kernels::Determinism::kFast;
  return kernels::Determinism::kBatchInvariant;
}

DType CudaActivationType(const RuntimeOptions& options) {
  if (options.model.dtype) return *options.model.dtype;
  return options.pool.dtype == DType::kF32 ? DType::kF32 : DType::kBF16;
}

absl::Status CheckSmallestRequestFits(const RuntimeOptions& options,
                                      const cache::PageDemand& demand, std::uint32_t num_blocks) {
  constexpr std::uint32_t kMinTokens = 2;
  const std::uint32_t needed = demand.PagesFor(kMinTokens);
  if (num_blocks > needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the KV pool has ", num_blocks - 1, " usable pages, the shortest sequence needs ", needed,
      options.pool.capacity_bytes
          ? "; raise kv_cache.capacity_bytes"
          : "; kv_cache.capacity_bytes is auto, and too little memory is free"));
}

std::int32_t LongestSequence(const cache::PageDemand& demand, std::uint32_t usable_pages,
                             std::int32_t max_tokens) {
  std::uint32_t fits = 0;  // binary search: more tokens never need fewer pages
  for (std::uint32_t end = static_cast<std::uint32_t>(max_tokens); fits < end;) {
    const std::uint32_t tokens = end - (end - fits) / 2;
    if (demand.PagesFor(tokens) <= usable_pages) {
      fits = tokens;
    } else {
      end = tokens - 1;
    }
  }
  return static_cast<std::int32_t>(fits);
}

RunnerOptions RunnerOptionsFor(const RuntimeOptions& options, std::int32_t context_tokens) {
  RunnerOptions runner;
  runner.max_rows = options.steps.max_rows;
  runner.max_step_tokens = options.steps.max_tokens;
  runner.max_logprobs = options.steps.max_logprobs;
  runner.max_context_tokens = static_cast<std::uint32_t>(context_tokens);
  return runner;
}

absl::StatusOr<DevicePlan> PlanDevice(const RuntimeOptions& options,
                                      const formats::ModelFiles& files, std::int64_t free_bytes,
                                      std::uint32_t num_sms) {
  QUIRE_ASSIGN_OR_RETURN(const CheckedSpec model, ReadModelSpec(files, DeviceKind::kCuda));
  DevicePlan plan;
  plan.free_bytes = free_bytes;
  plan.reserve_bytes = options.pool.capacity_bytes ? 0 : options.device.reserve_bytes;
  plan.page_size = options.pool.page_size;
  plan.kv_dtype = options.pool.dtype;
  const auto own = static_cast<std::int32_t>(model.spec.max_position);
  QUIRE_ASSIGN_OR_RETURN(plan.context_tokens, ContextTokens(options.model, own));
  plan.runner = RunnerOptionsFor(options, plan.context_tokens);
  plan.runner.has_text.assign(model.config.vocab_size, 1);
  plan.runner.activation = CudaActivationType(options);
  plan.runner.graphs = options.device.cuda_graphs;
  plan.runner.fp8_activations = options.model.fp8_activations;

  if (plan.reserve_bytes >= free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("device.reserve_bytes is ", plan.reserve_bytes,
                                                     ", the GPU has ", free_bytes, " bytes free"));
  }
  DevicePlanOptions request = PlanOptions(options, plan, num_sms);
  QUIRE_ASSIGN_OR_RETURN(
      plan.states, PlanDeviceStates(options, model.spec, files, plan.context_tokens, request));
  plan.runner.max_rows = plan.states.max_rows;
  plan.runner.num_state_slots = plan.states.num_slots;
  request.runner = plan.runner;
  QUIRE_ASSIGN_OR_RETURN(request.num_blocks,
                         ConfiguredBlocks(options, model.spec, plan.states.bytes()));
  QUIRE_ASSIGN_OR_RETURN(plan.memory, PlanDeviceMemory(files, request));
  const cache::PageDemand demand = PageDemandFor(options, plan.memory.layer_groups);
  const std::int64_t useful = UsefulBlocks(plan.states.max_rows, demand, plan.context_tokens);
  if (!options.pool.capacity_bytes && plan.memory.num_blocks > useful) {
    request.num_blocks = static_cast<std::uint32_t>(useful);
    QUIRE_ASSIGN_OR_RETURN(plan.memory, PlanDeviceMemory(files, request));
  }
  QUIRE_RETURN_IF_ERROR(CheckSmallestRequestFits(options, demand, plan.memory.num_blocks));
  QUIRE_RETURN_IF_ERROR(CutContext(options, files, demand, request, &plan));
  plan.sequence_pages = demand.PagesFor(static_cast<std::uint32_t>(plan.context_tokens));
  return plan;
}

absl::StatusOr<CpuPool> PlanCpuPool(const RuntimeOptions& options, const models::ModelSpec& spec,
                                    std::int64_t free_bytes) {
  CpuPool pool;
  const auto own = static_cast<std::int32_t>(spec.max_position);
  QUIRE_ASSIGN_OR_RETURN(pool.wanted_context_tokens, ContextTokens(options.model, own));
  QUIRE_ASSIGN_OR_RETURN(pool.geometry, SmallestGeometry(options, spec));
  pool.layers = models::PlanLayerGroups(spec);
  const cache::PageDemand demand = PageDemandFor(options, pool.layers);
  absl::StatusOr<StatePlan> states =
      PlanHostStates(options, pool, HostPoolBytes(options, free_bytes));
  if (!states.ok() && !options.pool.capacity_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(AutomaticPoolText(options, free_bytes), states.status().message()));
  }
  QUIRE_ASSIGN_OR_RETURN(pool.states, std::move(states));
  QUIRE_ASSIGN_OR_RETURN(pool.geometry.num_blocks,
                         ConfiguredBlocks(options, spec, pool.states.bytes()));
  if (!options.pool.capacity_bytes) {
    QUIRE_ASSIGN_OR_RETURN(const std::uint32_t fit, FreeHostBlocks(options, pool, free_bytes));
    pool.geometry.num_blocks = static_cast<std::uint32_t>(std::min(
        std::int64_t{fit}, UsefulBlocks(pool.states.max_rows, demand, pool.wanted_context_tokens)));
  }
  pool.geometry.num_blocks = static_cast<std::uint32_t>(
      std::min<std::int64_t>(pool.geometry.num_blocks, MaxNumBlocks(spec, pool.geometry)));
  QUIRE_RETURN_IF_ERROR(CheckSmallestRequestFits(options, demand, pool.geometry.num_blocks));
  pool.context_tokens =
      LongestSequence(demand, pool.geometry.num_blocks - 1, pool.wanted_context_tokens);
  QUIRE_RETURN_IF_ERROR(CheckContextFits(options.model, pool.context_tokens));
  return pool;
}

absl::StatusOr<CpuPlan> PlanCpu(const RuntimeOptions& options, const formats::ModelFiles& files,
                                std::int64_t free_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const CheckedSpec model, ReadModelSpec(files, DeviceKind::kCpu));
  const auto own = static_cast<std::int32_t>(model.spec.max_position);
  CpuPlan plan;
  QUIRE_ASSIGN_OR_RETURN(plan.context_tokens, ContextTokens(options.model, own));
  std::uint32_t num_blocks = 2;
  if (options.pool.capacity_bytes) {
    QUIRE_ASSIGN_OR_RETURN(const CpuPool pool, PlanCpuPool(options, model.spec, /*free_bytes=*/0));
    num_blocks = pool.geometry.num_blocks;
    plan.context_tokens = pool.context_tokens;
    plan.states = pool.states;
  } else {
    QUIRE_ASSIGN_OR_RETURN(plan.states, SmallestStates(options, model.spec));
  }
  QUIRE_ASSIGN_OR_RETURN(plan.memory,
                         PlanHostMemory(options, files, model.config.vocab_size, num_blocks, plan));
  const std::int64_t left = free_bytes - plan.memory.weight_bytes;
  if (!options.pool.capacity_bytes && plan.states.num_slots > 0 && left >= 0) {
    QUIRE_ASSIGN_OR_RETURN(const CpuPool pool, PlanCpuPool(options, model.spec, left));
    plan.states = pool.states;
    QUIRE_ASSIGN_OR_RETURN(
        plan.memory, PlanHostMemory(options, files, model.config.vocab_size, num_blocks, plan));
  }
  const cache::PageDemand demand = PageDemandFor(options, plan.memory.layer_groups);
  plan.sequence_pages = demand.PagesFor(static_cast<std::uint32_t>(plan.context_tokens));
  return plan;
}

std::vector<std::pair<std::string, std::int64_t>> PlanLines(const DevicePlan& plan) {
  const RunnerMemory& runner = plan.memory.runner;
  std::vector<std::pair<std::string, std::int64_t>> lines = {
      {"weights", plan.memory.weight_bytes},    {"kv", plan.memory.pool_bytes},
      {"activations", runner.activation_bytes}, {"attention", runner.attention_bytes},
      {"sampler", runner.sampler_bytes},        {"linear", runner.linear_bytes},
      {"graphs", runner.graph_bytes},           {"total", plan.memory.total_bytes()},
      {"reserve", plan.reserve_bytes},          {"free", plan.free_bytes},
      {"pinned", runner.pinned_bytes},          {"prefix_index", plan.memory.prefix_index_bytes}};
  const auto total = std::ranges::find(lines, "total", [](const auto& line) { return line.first; });
  if (runner.state_bytes > 0) lines.insert(total, {"states", runner.state_bytes});
  return lines;
}

}  // namespace quire::runtime
