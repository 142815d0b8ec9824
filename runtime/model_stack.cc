#include "runtime/model_stack.h"

#include <sched.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "cache_manager/cache_manager.h"
#include "formats/tensors/gguf_tensors.h"
#include "kernels/backend/backend.h"
#include "kernels/cuda/context.h"
#include "runtime/cpu_runner.h"
#include "runtime/cuda_runner.h"
#include "runtime/first_steps.h"
#include "runtime/host_memory.h"
#include "runtime/memory_plan.h"
#include "runtime/self_check.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace quire::runtime {
namespace {

constexpr char kContextCut[] = "context cut to what the KV pool can hold";

// Returns a new key for each process, so that clients cannot predict which prefixes share a key.
HashKey RandomHashKey() {
  std::random_device device;
  HashKey key;
  for (std::uint64_t& word : key.words) word = std::uint64_t{device()} << 32 | device();
  return key;
}

// Returns a mask that is 1 for every id that has text.
std::vector<std::uint8_t> TextMask(const text::Tokenizer& tokenizer, std::uint32_t vocab_size) {
  std::vector<std::uint8_t> mask(vocab_size);
  for (std::uint32_t id = 0; id < vocab_size; ++id) {
    mask[id] = tokenizer.HasText(static_cast<std::int32_t>(id)) ? 1 : 0;
  }
  return mask;
}

// Sets the options that depend on the tokenizer.
void CompleteRunnerOptions(const text::Tokenizer& tokenizer, const Model& model,
                           RunnerOptions* options) {
  const std::uint32_t vocab_size = model.config.vocab_size;
  options->has_text = TextMask(tokenizer, vocab_size);
  options->text_vocab = std::min(static_cast<std::uint32_t>(tokenizer.vocab_size()), vocab_size);
}

// Logs the plan before anything is loaded.
void LogPlan(const DevicePlan& plan) {
  const RunnerMemory& runner = plan.memory.runner;
  log::Info("model", "memory plan",
            {{"weight_bytes", plan.memory.weight_bytes},
             {"pool_bytes", plan.memory.pool_bytes},
             {"pages", plan.memory.num_blocks - 1},
             {"page_bytes", plan.memory.page_bytes},
             {"activation_bytes", runner.activation_bytes},
             {"attention_bytes", runner.attention_bytes},
             {"sampler_bytes", runner.sampler_bytes},
             {"linear_bytes", runner.linear_bytes},
             {"graph_bytes", runner.graph_bytes},
             {"state_bytes", runner.state_bytes},
             {"total_bytes", plan.memory.total_bytes()},
             {"reserve_bytes", plan.reserve_bytes},
             {"free_bytes", plan.free_bytes},
             {"pinned_host_bytes", runner.pinned_bytes},
             {"prefix_index_host_bytes", plan.memory.prefix_index_bytes},
             {"max_context_tokens", plan.context_tokens}});
}

// Logs the state slots if there are any, and whether fewer than `wanted_rows` sequences can run.
void LogStates(const StatePlan& states, std::uint32_t wanted_rows) {
  if (states.num_slots == 0) return;
  if (states.max_rows < wanted_rows) {
    log::Info("model", "fewer sequences run at a time, because more recurrent states do not fit",
              {{"max_running_sequences", states.max_rows}, {"requested", wanted_rows}});
  }
  log::Info("model", "recurrent states",
            {{"slot_bytes", states.slot_bytes},
             {"slots", states.num_slots - 1},
             {"snapshots", states.num_snapshots},
             {"slot_tokens", states.slot_tokens}});
}

// Logs the layer groups if any of them has a window.
void LogLayerGroups(const models::LayerGroups& layers) {
  if (std::ranges::none_of(layers.groups, [](const auto& group) { return group.window > 0; })) {
    return;
  }
  log::Info("model", "layer groups",
            {{"groups", layers.groups.size()}, {"text", models::DescribeLayerGroups(layers)}});
}

// Binds the calling thread, while this object exists, to the CPU that computes part 0 of every op.
// The first thread that touches memory determines its NUMA node. So the weights that the calling
// thread packs are allocated on the node of that CPU.
class LoadBinding {
 public:
  explicit LoadBinding(const ThreadPool& pool) {
    CPU_ZERO(&before_);
    is_known_ = sched_getaffinity(0, sizeof(before_), &before_) == 0;
    if (is_known_) pool.BindCaller();
  }
  ~LoadBinding() {
    if (is_known_) (void)sched_setaffinity(0, sizeof(before_), &before_);
  }
  LoadBinding(const LoadBinding&) = delete;
  LoadBinding& operator=(const LoadBinding&) = delete;

 private:
  cpu_set_t before_;
  bool is_known_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<text::Tokenizer>> OpenTokenizer(const ModelOptions& options,
                                                               const formats::ModelFiles& files) {
  if (!files.gguf().empty()) {
    QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
    QUIRE_ASSIGN_OR_RETURN(const text::GgufVocabulary vocabulary,
                           text::ReadGgufVocabulary(opened.gguf));
    return text::Tokenizer::FromGguf(vocabulary);
  }
  if (options.path != "embedded") return text::Tokenizer::Load(options.path);
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile tokenizer, files.Open("tokenizer.json"));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFile config, files.Open("tokenizer_config.json"));
  return text::Tokenizer::FromJson(tokenizer.text(), config.text());
}

absl::Status CheckPlan(const RuntimeOptions& options, const formats::ModelFiles& files,
                       const CheckedSpec& model, DeviceKind device) {
  LogLayerGroups(models::PlanLayerGroups(model.spec));
  if (device == DeviceKind::kCpu) {
    const std::int64_t free_bytes = FreeHostMemory();
    QUIRE_ASSIGN_OR_RETURN(const CpuPlan plan, PlanCpu(options, files, free_bytes));
    if (plan.memory.weight_bytes > free_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weights of the model take ", plan.memory.weight_bytes,
                       " bytes, but only ", free_bytes,
                       " bytes of memory are free; use a smaller model, or a smaller "
                       "model.quantization such as int4_g32"));
    }
    // At start, the pages are planned after the weights are loaded.
    return PlanCpuPool(options, model.spec, free_bytes - plan.memory.weight_bytes).status();
  }
  const absl::StatusOr<Device> gpu = OpenCudaDevice(options.device.cuda_ordinal);
  if (!gpu.ok()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t free_bytes, FreeDeviceMemory(*gpu));
  return PlanDevice(options, files, free_bytes, gpu->num_sms).status();
}

absl::StatusOr<std::unique_ptr<ModelStack>> ModelStack::Build(
    const RuntimeOptions& options, const formats::ModelFiles& files,
    std::unique_ptr<ComputeDevice> device, std::vector<kernels::KernelCheck>* checks) {
  std::unique_ptr<ModelStack> stack(new ModelStack());
  stack->device_ = std::move(device);
  stack->max_rows_ = options.steps.max_rows;
  const absl::Time start = MonotonicNow();
  QUIRE_ASSIGN_OR_RETURN(stack->tokenizer_, OpenTokenizer(options.model, files));
  stack->load_times_.tokenizer = MonotonicNow() - start;
  absl::Status status = stack->device_->is_cpu() ? stack->PrepareCpu(options, files)
                                                 : stack->PrepareCuda(options, files, checks);
  if (status.ok()) {
    QUIRE_ASSIGN_OR_RETURN(stack->cache_,
                           cache::CacheManager::Create(stack->CacheOptionsFor(options)));
    status = stack->RunFirstSteps(options, checks);
  }
  if (absl::IsDeadlineExceeded(status)) {
    // A kernel that does not end still uses the memory, and freeing it would wait for the kernel.
    (void)stack.release();
  }
  QUIRE_RETURN_IF_ERROR(status);
  return stack;
}

absl::Status ModelStack::RunFirstSteps(const RuntimeOptions& options,
                                       std::vector<kernels::KernelCheck>* checks) {
  const FirstSteps steps = {
      .cache = cache_.get(),
      .runner = runner_.get(),
      .spec = &model_->spec,
      .max_rows = max_rows_,
      .max_step_tokens = options.steps.max_tokens,
      .max_context_tokens = static_cast<std::uint32_t>(context_tokens_),
      .activation = activation_,
  };
  if (device_->is_cpu()) return RunOneToken(steps);
  const absl::Time start = MonotonicNow();
  std::vector<kernels::KernelCheck> compared;
  cuda_runner_->LimitWaits(start + kSelfCheckLimit);
  QUIRE_RETURN_IF_ERROR(CompareFirstSteps(steps, &compared));
  cuda_runner_->LimitWaits(absl::InfiniteFuture());
  for (const kernels::KernelCheck& check : compared) {
    self_check_.checks += check.skipped.empty() ? 1 : 0;
    if (check.skipped.empty()) continue;
    log::Info("device", "the self-check skipped a comparison",
              {{"kernel", check.kernel}, {"shape", check.shape}, {"reason", check.skipped}});
  }
  self_check_.time += MonotonicNow() - start;
  const absl::Status status = FailureOf(compared, device_->backend());
  if (status.ok()) {
    log::Info("device", "the kernels passed the self-check",
              {{"checks", self_check_.checks}, {"time", self_check_.time}});
  }
  if (checks != nullptr) checks->insert(checks->end(), compared.begin(), compared.end());
  return status;
}

absl::Status ModelStack::CompareFirstSteps(const FirstSteps& steps,
                                           std::vector<kernels::KernelCheck>* compared) {
  const kernels::Backend& backend = device_->backend();
  absl::Status status = RunOneToken(steps);
  if (absl::IsInvalidArgument(status)) return status;  // The logits are not finite.
  if (!status.ok()) {
    status = absl::Status(status.code(), absl::StrCat("steps, one token: ", status.message()));
  } else if (backend.cuda()->determinism == kernels::Determinism::kFast) {
    compared->push_back(
        {.kernel = "steps",
         .shape = "all",
         .skipped = "engine.determinism is fast, so the logits of a token may depend on its step"});
  } else {
    status = CompareSteps(steps, compared);
  }
  return status.ok() ? status : CheckError(status, backend);
}

absl::Status ModelStack::LoadWeights(const RuntimeOptions& options,
                                     const formats::ModelFiles& files,
                                     std::int64_t weight_limit_bytes) {
  const absl::Time start = MonotonicNow();
  const LoadBinding binding(device_->threads());
  QUIRE_ASSIGN_OR_RETURN(model_, LoadModel(files, device_->backend(),
                                           {.mode = LoadModeOf(options.model),
                                            .activation = activation_,
                                            .quantization = options.model.quantization,
                                            .fp8_activations = options.model.fp8_activations,
                                            .packed_dir = options.model.packed_dir,
                                            .weight_limit_bytes = weight_limit_bytes,
                                            .max_context_tokens = static_cast<std::uint32_t>(
                                                options.model.max_context_tokens.value_or(0))}));
  load_times_.read = MonotonicNow() - start;
  for (const std::string& warning : model_->warnings) {
    log::Warn("model", "warning while loading the model", {{"text", warning}});
  }
  const auto vocab_size = static_cast<std::int32_t>(model_->config.vocab_size);
  if (tokenizer_->vocab_size() > vocab_size) {
    log::Warn("model",
              "the tokenizer has ids that the model lacks; prompts with these ids are rejected",
              {{"tokenizer", tokenizer_->vocab_size()}, {"model", vocab_size}});
  }
  return absl::OkStatus();
}

absl::Status ModelStack::PrepareCpu(const RuntimeOptions& options,
                                    const formats::ModelFiles& files) {
  if (options.model.dtype == DType::kBF16) {
    return absl::InvalidArgumentError("model.dtype is bf16, and the CPU computes in f32 only");
  }
  // Loading weights is slow, so the part of the plan that needs no weights is checked first.
  QUIRE_ASSIGN_OR_RETURN(const CpuPlan plan, PlanCpu(options, files, FreeHostMemory()));
  QUIRE_RETURN_IF_ERROR(device_->SetActivations(plan.memory.activations));
  log::Info("model", "activations of matrix products",
            {{"activations", kernels::CpuActivationsName(plan.memory.activations)},
             {"configured", kernels::CpuActivationsName(options.device.activations)}});
  QUIRE_RETURN_IF_ERROR(LoadWeights(options, files, /*weight_limit_bytes=*/0));
  QUIRE_ASSIGN_OR_RETURN(CpuPool planned, PlanCpuPool(options, model_->spec, FreeHostMemory()));
  context_tokens_ = planned.context_tokens;
  if (context_tokens_ < planned.wanted_context_tokens) {
    log::Warn(
        "model", kContextCut,
        {{"max_context_tokens", context_tokens_}, {"requested", planned.wanted_context_tokens}});
  }
  layers_ = std::move(planned.layers);
  states_ = planned.states;
  max_rows_ = states_.max_rows;
  LogStates(states_, options.steps.max_rows);
  LogLayerGroups(layers_);
  QUIRE_ASSIGN_OR_RETURN(pool_, cache::KvPool::Create(planned.geometry));
  RunnerOptions runner = RunnerOptionsFor(options, context_tokens_);
  runner.max_rows = max_rows_;
  runner.num_state_slots = states_.num_slots;
  CompleteRunnerOptions(*tokenizer_, *model_, &runner);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<CpuRunner> created,
                         CpuRunner::Create(*model_, device_->backend(), &*pool_, runner));
  workspace_bytes_ = created->workspace_bytes();
  runner_ = std::move(created);
  const std::int64_t index_bytes = cache::CacheManager::PrefixIndexBytes(CacheOptionsFor(options));
  memory_ = {{"weights", model_->weight_bytes},
             {"kv", pool_->size_bytes()},
             {"prefix_index", index_bytes},
             {"workspace", workspace_bytes_}};
  if (states_.num_slots > 0) memory_.push_back({"states", states_.bytes()});
  const cache::KvGeometry& geometry = pool_->geometry();
  log::Info("model", "memory plan",
            {{"weight_bytes", model_->weight_bytes},
             {"pool_bytes", pool_->size_bytes()},
             {"pages", geometry.num_blocks - 1},
             {"page_bytes", geometry.page_bytes()},
             {"prefix_index_bytes", index_bytes},
             {"workspace_bytes", workspace_bytes_},
             {"max_context_tokens", context_tokens_}});
  return absl::OkStatus();
}

absl::Status ModelStack::PrepareCuda(const RuntimeOptions& options,
                                     const formats::ModelFiles& files,
                                     std::vector<kernels::KernelCheck>* checks) {
  const Device& device = device_->device();
  QUIRE_ASSIGN_OR_RETURN(std::int64_t free_bytes, FreeDeviceMemory(device));
  // The backend has allocated its part of the plan already.
  free_bytes += kernels::LinearWorkspaceBytes(device_->backend().cuda()->determinism);
  QUIRE_ASSIGN_OR_RETURN(DevicePlan plan, PlanDevice(options, files, free_bytes, device.num_sms));
  LogPlan(plan);
  context_tokens_ = plan.context_tokens;
  states_ = plan.states;
  max_rows_ = states_.max_rows;
  LogStates(states_, options.steps.max_rows);
  if (plan.context_was_cut) {
    log::Warn("model", kContextCut, {{"max_context_tokens", context_tokens_}});
  }
  activation_ = CudaActivationType(options);
  QUIRE_RETURN_IF_ERROR(LoadWeights(options, files, plan.memory.weight_bytes));
  layers_ = models::PlanLayerGroups(model_->spec);
  LogLayerGroups(layers_);
  QUIRE_ASSIGN_OR_RETURN(
      const cache::KvGeometry geometry,
      KvGeometryFor(model_->spec, plan.page_size, plan.kv_dtype, plan.memory.num_blocks));
  QUIRE_ASSIGN_OR_RETURN(
      pool_, cache::KvPool::Create(geometry, {.stream = device_->backend().cuda()->stream}));
  CompleteRunnerOptions(*tokenizer_, *model_, &plan.runner);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<CudaRunner> created,
                         CudaRunner::Create(*model_, device_->backend(), &*pool_, plan.runner));
  const RunnerMemory& memory = created->memory();
  workspace_bytes_ = memory.device_bytes() - memory.state_bytes;
  memory_ = {{"weights", model_->weight_bytes},
             {"kv", pool_->size_bytes()},
             {"activations", memory.activation_bytes},
             {"attention", memory.attention_bytes},
             {"sampler", memory.sampler_bytes},
             {"linear", memory.linear_bytes},
             {"graphs", memory.graph_bytes},
             {"pinned", memory.pinned_bytes, /*on_host=*/true},
             {"prefix_index", cache::CacheManager::PrefixIndexBytes(CacheOptionsFor(options)),
              /*on_host=*/true}};
  if (states_.num_slots > 0) memory_.push_back({"states", states_.bytes()});
  cuda_runner_ = created.get();
  runner_ = std::move(created);
  return CheckKernels(checks);
}

absl::Status ModelStack::CheckKernels(std::vector<kernels::KernelCheck>* checks) {
  const absl::Time start = MonotonicNow();
  SelfCheckReport report;
  const absl::Status status = cuda_runner_->CheckKernels(kSelfCheckLimit, &report);
  self_check_.checks = static_cast<int>(report.checks.size());
  self_check_.time = MonotonicNow() - start;
  if (checks != nullptr) *checks = std::move(report.checks);
  return status;
}

DeviceDescription ModelStack::DescribeDevice() const {
  DeviceDescription description = device_->Describe();
  if (!device_->is_cpu()) description.self_check = self_check_;
  return description;
}

cache::CacheManagerOptions ModelStack::CacheOptionsFor(const RuntimeOptions& options) const {
  return {.geometry = pool_->geometry(),
          .groups = models::CacheGroupsOf(layers_),
          .max_rows = max_rows_,
          .max_context_tokens = static_cast<std::uint32_t>(context_tokens_),
          .max_row_overlap_tokens = options.steps.max_overlap_tokens,
          .num_state_slots = states_.num_slots,
          .state_interval_tokens = states_.interval_tokens,
          .prefix_caching = options.pool.prefix_caching,
          .partial_page_reuse = options.pool.partial_page_reuse,
          .hash_key = RandomHashKey()};
}

}  // namespace quire::runtime
