#include "server/model_stack.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/machine.h"
#include "base/status.h"
#include "cache_manager/cache_manager.h"
#include "formats/tensors/gguf_tensors.h"
#include "kernels/linear/linear_reduction.h"
#include "models/families/registry.h"
#include "runtime/cpu_runner.h"
#include "runtime/cuda_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/step_batch.h"
#include "server/chat_templates.h"
#include "server/embedded_model.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace quire::server {
namespace {

constexpr char kContextCut[] = "context cut to what the KV pool can hold";

// The first number of a file such as /sys/fs/cgroup/memory.max; nothing for "max" or without the
// file.
std::optional<std::int64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  std::string word;
  std::int64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  return value;
}

// What the system would give without swapping (proc(5), MemAvailable), within the cgroup's limit.
std::int64_t FreeMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  std::int64_t available = 0;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "MemAvailable:")) continue;
    absl::ConsumeSuffix(&rest, " kB");
    if (absl::SimpleAtoi(rest, &available)) available *= 1024;
  }
  const std::optional<std::int64_t> limit = ReadNumber("/sys/fs/cgroup/memory.max");
  const std::optional<std::int64_t> used = ReadNumber("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - *used);
  return std::max<std::int64_t>(available, 0);
}

// Pages of the pool in host memory, the null page included.
absl::StatusOr<std::uint32_t> CountBlocks(const DaemonOptions& options,
                                          const cache::KvGeometry& geometry,
                                          const cache::PageDemand& demand,
                                          std::int32_t context_tokens) {
  if (options.pool.capacity_bytes) {
    absl::StatusOr<std::uint32_t> blocks =
        models::NumBlocksForBytes(geometry, *options.pool.capacity_bytes);
    if (blocks.ok()) return blocks;
    return absl::InvalidArgumentError(
        absl::StrCat("kv_cache.capacity_bytes: ", blocks.status().message()));
  }
  const std::int64_t free_bytes = FreeMemoryBytes();
  const auto share =
      static_cast<std::int64_t>(options.pool.memory_share * static_cast<double>(free_bytes));
  absl::StatusOr<std::uint32_t> fit = models::NumBlocksForBytes(geometry, share);
  if (!fit.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "kv_cache.capacity_bytes is auto, ", free_bytes, " bytes of memory are free and ",
        "device.cpu.kv_memory_share is ", options.pool.memory_share, ": ",
        fit.status().message()));
  }
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(*fit, UsefulBlocks(options, demand, context_tokens)));
}

absl::StatusOr<models::ModelFiles> OpenModelFiles(const ModelOptions& options) {
  if (options.path == "embedded") return EmbeddedModelFiles();
  return models::ModelFiles::FromPath(options.path);
}

absl::StatusOr<std::unique_ptr<text::Tokenizer>> OpenTokenizer(const ModelOptions& options,
                                                               const models::ModelFiles& files) {
  if (!files.gguf().empty()) {
    QUIRE_ASSIGN_OR_RETURN(const models::OpenedGguf opened, models::OpenGguf(files));
    QUIRE_ASSIGN_OR_RETURN(const text::GgufVocabulary vocabulary,
                           text::ReadGgufVocabulary(opened.gguf));
    return text::Tokenizer::FromGguf(vocabulary);
  }
  if (options.path != "embedded") return text::Tokenizer::Load(options.path);
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFile tokenizer, files.Open("tokenizer.json"));
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFile config, files.Open("tokenizer_config.json"));
  return text::Tokenizer::FromJson(tokenizer.text(), config.text());
}

// Fresh for each process: no client can foresee which prefixes share a key.
HashKey RandomHashKey() {
  std::random_device device;
  HashKey key;
  for (std::uint64_t& word : key.words) word = std::uint64_t{device()} << 32 | device();
  return key;
}

template <typename T>
void SetIf(const std::optional<T>& value, T* target) {
  if (value) *target = *value;
}

// Configuration over generation_config.json over the API's own defaults.
engine::SamplingParams ResolveSampling(const models::GenerationDefaults& model,
                                       const SamplingDefaults& configured) {
  engine::SamplingParams params;
  SetIf(model.temperature, &params.temperature);
  if (model.do_sample && !*model.do_sample) params.temperature = 0;
  SetIf(model.top_p, &params.top_p);
  SetIf(model.top_k, &params.top_k);
  SetIf(model.min_p, &params.min_p);
  SetIf(model.repetition_penalty, &params.repetition_penalty);
  SetIf(configured.temperature, &params.temperature);
  SetIf(configured.top_p, &params.top_p);
  SetIf(configured.top_k, &params.top_k);
  SetIf(configured.min_p, &params.min_p);
  SetIf(configured.repetition_penalty, &params.repetition_penalty);
  SetIf(configured.presence_penalty, &params.presence_penalty);
  SetIf(configured.frequency_penalty, &params.frequency_penalty);
  return params;
}

// 1 for every id that has text.
std::vector<std::uint8_t> TextMask(const text::Tokenizer& tokenizer, std::uint32_t vocab_size) {
  std::vector<std::uint8_t> mask(vocab_size);
  for (std::uint32_t id = 0; id < vocab_size; ++id) {
    mask[id] = tokenizer.HasText(static_cast<std::int32_t>(id)) ? 1 : 0;
  }
  return mask;
}

// What the tokenizer makes of a draw.
void CompleteRunnerOptions(const text::Tokenizer& tokenizer, const models::Model& model,
                           models::RunnerOptions* options) {
  const std::uint32_t vocab_size = model.config.vocab_size;
  options->has_text = TextMask(tokenizer, vocab_size);
  options->text_vocab =
      std::min(static_cast<std::uint32_t>(tokenizer.vocab_size()), vocab_size);
}

// One line before anything is loaded.
void LogPlan(const DevicePlan& plan) {
  const models::RunnerMemory& runner = plan.memory.runner;
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
             {"total_bytes", plan.memory.total_bytes()},
             {"reserve_bytes", plan.reserve_bytes},
             {"free_bytes", plan.free_bytes},
             {"pinned_host_bytes", runner.pinned_bytes},
             {"max_context_tokens", plan.context_tokens}});
}

// Layers that share pages, where some of them let pages go.
void LogLayerGroups(const models::LayerGroups& layers) {
  const bool has_windows =
      std::any_of(layers.groups.begin(), layers.groups.end(),
                  [](const models::LayerGroup& group) { return group.window > 0; });
  if (!has_windows) return;
  log::Info("model", "layer groups",
            {{"groups", layers.groups.size()}, {"text", models::DescribeLayerGroups(layers)}});
}

// The memory plan, where a GPU is present; a machine without one can still check the rest.
absl::Status ValidateOnGpu(const DaemonOptions& options, const models::ModelFiles& files) {
  const absl::StatusOr<Device> device = OpenCudaDevice(options.device.cuda_ordinal);
  if (!device.ok()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t free_bytes, FreeDeviceMemory(*device));
  return PlanDevice(options, files, free_bytes, device->num_sms).status();
}

// One greedy step over one token, before anybody is let in: what cannot answer is never READY.
absl::Status RunOneToken(cache::CacheManager* cache, models::StepRunner* runner) {
  const BatchRow row(0);
  QUIRE_RETURN_IF_ERROR(cache->Reserve(row, 1));
  const cache::RowStep step{.row = row, .cache_length = 0, .new_tokens = 1};
  models::StepBatch batch;
  batch.token_ids = {0};
  batch.rows = {{.batch_row = row, .cache_length = 0, .first_token = 0, .num_tokens = 1}};
  batch.logits_tokens = {0};
  batch.samples.resize(1);
  batch.samples[0].row.temperature = 0;
  batch.samples[0].row.position = 1;
  batch.copies = cache->TakeCopies();
  batch.clears = cache->TakeClears();
  batch.kv = cache->PrepareStep({&step, 1});
  QUIRE_RETURN_IF_ERROR(runner->Run(batch));
  QUIRE_ASSIGN_OR_RETURN(const models::StepResult* result, runner->Collect());
  const bool non_finite = result->samples[0].non_finite;
  cache->CompleteStep();
  cache->Free(row);
  if (non_finite) {
    return absl::InvalidArgumentError("the first step of the model gave NaN or infinite logits");
  }
  return absl::OkStatus();
}

// Binds the thread for a while to where part 0 of every op will be computed, so that it is the
// first to touch what it packs there: memory then lies at its node.
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

std::string ServedModelId(const ModelOptions& options) {
  if (options.id) return *options.id;
  if (options.path == "embedded") return "story";
  std::filesystem::path path(options.path);
  if (!path.has_filename()) path = path.parent_path();  // a trailing slash
  // A file's extension is no part of the model's name; a directory may have dots in its own.
  if (absl::EndsWithIgnoreCase(path.native(), ".gguf")) path = path.stem();
  return path.filename().string();
}

absl::Status ValidateModel(const DaemonOptions& options) {
  if (options.device.type != DeviceChoice::kCuda) QUIRE_RETURN_IF_ERROR(SelectIsa(options));
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFiles files, OpenModelFiles(options.model));
  const DeviceKind device =
      options.device.type == DeviceChoice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
  QUIRE_ASSIGN_OR_RETURN(const models::CheckedSpec model, models::ReadModelSpec(files, device));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer,
                         OpenTokenizer(options.model, files));
  QUIRE_RETURN_IF_ERROR(LoadChatTemplates(options.chat, files, *tokenizer).status());
  const models::LayerGroups layers = models::PlanLayerGroups(model.spec);
  LogLayerGroups(layers);
  if (options.device.type == DeviceChoice::kCuda) return ValidateOnGpu(options, files);
  QUIRE_ASSIGN_OR_RETURN(
      const std::int32_t context,
      ContextTokens(options.model,
                    static_cast<std::int32_t>(model.spec.max_position)));
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                         models::KvGeometryFor(model.spec, options.pool.page_size,
                                               options.pool.dtype, /*num_blocks=*/2));
  const cache::PageDemand demand = PageDemandFor(options, layers, DeviceKind::kCpu);
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t num_blocks,
                         CountBlocks(options, geometry, demand, context));
  return CheckHoldsAnything(options, demand, num_blocks);
}

absl::StatusOr<std::unique_ptr<ModelStack>> ModelStack::Build(const DaemonOptions& options,
                                                              const Clock* clock,
                                                              probe::Registry* metrics) {
  std::unique_ptr<ModelStack> stack(new ModelStack());
  const Machine machine = Machine::Detect();
  const int threads = options.compute_threads.value_or(machine.physical_cores());
  ThreadPoolOptions pool;
  if (options.pin_threads) pool.cpus = machine.CpusToBind(threads);
  log::Info("device", "compute threads",
            {{"threads", threads}, {"cores", machine.physical_cores()},
             {"bound", !pool.cpus.empty()}});
  stack->threads_ = std::make_unique<ThreadPool>(threads, std::move(pool));
  QUIRE_ASSIGN_OR_RETURN(stack->device_, ComputeDevice::Open(options, stack->threads_.get()));
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFiles files, OpenModelFiles(options.model));
  QUIRE_RETURN_IF_ERROR(stack->LoadTokenizer(options, files));
  QUIRE_RETURN_IF_ERROR(stack->device_->is_cpu() ? stack->PrepareCpu(options, files)
                                                 : stack->PrepareCuda(options, files));
  QUIRE_RETURN_IF_ERROR(stack->StartEngine(options, clock, metrics));
  QUIRE_RETURN_IF_ERROR(stack->Describe(options));
  return stack;
}

absl::Status ModelStack::LoadTokenizer(const DaemonOptions& options,
                                       const models::ModelFiles& files) {
  const absl::Time start = absl::Now();
  QUIRE_ASSIGN_OR_RETURN(tokenizer_, OpenTokenizer(options.model, files));
  load_times_.tokenizer = absl::Now() - start;
  return absl::OkStatus();
}

absl::Status ModelStack::LoadWeights(const DaemonOptions& options, const models::ModelFiles& files,
                                     std::int64_t weight_limit_bytes) {
  const absl::Time start = absl::Now();
  const LoadBinding binding(*threads_);
  QUIRE_ASSIGN_OR_RETURN(
      model_, models::LoadModel(files, device_->backend(),
                                {.mode = options.model.dummy_weights ? models::LoadMode::kDummy
                                                                     : models::LoadMode::kReal,
                                 .activation = device_->is_cpu() ? DType::kF32
                                                                 : CudaActivationType(options),
                                 .quantization = options.model.quantization,
                                 .packed_dir = options.model.packed_dir,
                                 .weight_limit_bytes = weight_limit_bytes,
                                 .max_context_tokens = static_cast<std::uint32_t>(
                                     options.model.max_context_tokens.value_or(0))}));
  load_times_.read = absl::Now() - start;
  for (const std::string& warning : model_->warnings) {
    log::Warn("model", "while loading", {{"text", warning}});
  }
  const auto vocab_size = static_cast<std::int32_t>(model_->config.vocab_size);
  if (tokenizer_->vocab_size() > vocab_size) {
    log::Warn("model",
              "the tokenizer has ids that the model lacks; text that gives them is refused",
              {{"tokenizer", tokenizer_->vocab_size()}, {"model", vocab_size}});
  }
  return absl::OkStatus();
}

absl::StatusOr<cache::KvGeometry> ModelStack::PlanCpuPool(const DaemonOptions& options) {
  const auto own = static_cast<std::int32_t>(model_->spec.max_position);
  QUIRE_ASSIGN_OR_RETURN(context_tokens_, ContextTokens(options.model, own));
  QUIRE_ASSIGN_OR_RETURN(cache::KvGeometry geometry,
                         models::KvGeometryFor(model_->spec, options.pool.page_size,
                                               options.pool.dtype, /*num_blocks=*/2));
  layers_ = models::PlanLayerGroups(model_->spec);
  LogLayerGroups(layers_);
  const cache::PageDemand demand = PageDemandFor(options, layers_, DeviceKind::kCpu);
  QUIRE_ASSIGN_OR_RETURN(geometry.num_blocks,
                         CountBlocks(options, geometry, demand, context_tokens_));
  QUIRE_RETURN_IF_ERROR(CheckHoldsAnything(options, demand, geometry.num_blocks));
  const std::int32_t longest =
      LongestSequence(demand, geometry.num_blocks - 1, context_tokens_);
  QUIRE_RETURN_IF_ERROR(CheckContextFits(options.model, longest));
  if (context_tokens_ > longest) {
    log::Warn("model", kContextCut, {{"max_context_tokens", longest}, {"of", context_tokens_}});
    context_tokens_ = longest;
  }
  return geometry;
}

absl::Status ModelStack::PrepareCpu(const DaemonOptions& options,
                                    const models::ModelFiles& files) {
  if (options.model.dtype == DType::kBF16) {
    return absl::InvalidArgumentError("model.dtype is bf16, and the CPU computes in f32 only");
  }
  QUIRE_RETURN_IF_ERROR(LoadWeights(options, files, /*weight_limit_bytes=*/0));
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry, PlanCpuPool(options));
  QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool, cache::KvPool::Create(geometry));
  pool_.emplace(std::move(pool));
  models::RunnerOptions runner;
  runner.max_rows = static_cast<std::uint32_t>(options.engine.max_running_sequences);
  runner.max_step_tokens = static_cast<std::uint32_t>(
      StepTokens(options.engine, static_cast<std::int32_t>(options.pool.page_size)));
  runner.max_logprobs = static_cast<std::uint32_t>(options.engine.limits.max_logprobs);
  CompleteRunnerOptions(*tokenizer_, *model_, &runner);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<models::ModelRunner> created,
                         models::ModelRunner::Create(*model_, device_->backend(), &*pool_, runner));
  workspace_bytes_ = created->workspace_bytes();
  runner_ = std::move(created);
  memory_ = {{"weights", model_->weight_bytes},
             {"kv", pool_->size_bytes()},
             {"workspace", workspace_bytes_}};
  return absl::OkStatus();
}

absl::Status ModelStack::PrepareCuda(const DaemonOptions& options,
                                     const models::ModelFiles& files) {
  const Device& device = device_->device();
  QUIRE_ASSIGN_OR_RETURN(std::int64_t free_bytes, FreeDeviceMemory(device));
  // The backend has taken its part of the plan already.
  free_bytes += kernels::kLinearWorkspaceBytes;
  QUIRE_ASSIGN_OR_RETURN(DevicePlan plan, PlanDevice(options, files, free_bytes, device.num_sms));
  LogPlan(plan);
  context_tokens_ = plan.context_tokens;
  if (plan.context_was_cut) {
    log::Warn("model", kContextCut, {{"max_context_tokens", context_tokens_}});
  }
  QUIRE_RETURN_IF_ERROR(LoadWeights(options, files, plan.memory.weight_bytes));
  layers_ = models::PlanLayerGroups(model_->spec);
  LogLayerGroups(layers_);
  QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                         models::KvGeometryFor(model_->spec, plan.page_size, plan.kv_dtype,
                                               plan.memory.num_blocks));
  QUIRE_ASSIGN_OR_RETURN(cache::KvPool pool,
                         cache::KvPool::Create(
                             geometry, {.stream = device_->backend().cuda()->stream}));
  pool_.emplace(std::move(pool));
  CompleteRunnerOptions(*tokenizer_, *model_, &plan.runner);
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<models::CudaRunner> created,
      models::CudaRunner::Create(*model_, device_->backend(), &*pool_, plan.runner));
  const models::RunnerMemory& memory = created->memory();
  workspace_bytes_ = memory.device_bytes();
  memory_ = {{"weights", model_->weight_bytes},     {"kv", pool_->size_bytes()},
             {"activations", memory.activation_bytes}, {"attention", memory.attention_bytes},
             {"sampler", memory.sampler_bytes},     {"linear", memory.linear_bytes},
             {"graphs", memory.graph_bytes},        {"pinned", memory.pinned_bytes}};
  runner_ = std::move(created);
  return absl::OkStatus();
}

engine::EngineOptions ModelStack::EngineOptionsFor(const DaemonOptions& options) const {
  engine::EngineOptions engine = options.engine;
  const auto vocab_size = static_cast<std::int32_t>(model_->config.vocab_size);
  engine.model_id = ServedModelId(options.model);
  engine.fingerprint = model_->fingerprint;
  engine.vocab_size = vocab_size;
  engine.max_context_tokens = context_tokens_;
  engine.eos_token_ids = model_->config.eos_ids;
  engine.kv_dtype = std::string(DTypeName(options.pool.dtype));
  engine.limits.vocab_size = vocab_size;
  engine.limits.max_tokens_per_request =
      options.max_tokens_per_request.value_or(context_tokens_);
  if (!device_->is_cpu()) {
    engine = GpuEngineOptions(engine);
    engine.share_generated_pages = options.determinism != "strict";
  } else {
    engine.auto_step_time_target = !engine.step_time_target.has_value();
    // The engine thread computes the first part of every op.
    engine.on_engine_thread = [pool = threads_.get()] { pool->BindCaller(); };
  }
  if (options.text_threads_auto) {
    engine.text_threads = std::max(1, Machine::Detect().physical_cores() / 8);
  }
  engine.partial_page_reuse = options.pool.partial_page_reuse;
  return engine;
}

absl::Status ModelStack::StartEngine(const DaemonOptions& options, const Clock* clock,
                                     probe::Registry* metrics) {
  const engine::EngineOptions engine = EngineOptionsFor(options);
  QUIRE_ASSIGN_OR_RETURN(
      std::unique_ptr<cache::CacheManager> cache,
      cache::CacheManager::Create(
          {.geometry = pool_->geometry(),
           .groups = models::CacheGroupsOf(layers_),
           .max_rows = static_cast<std::uint32_t>(engine.max_running_sequences),
           .max_context_tokens = static_cast<std::uint32_t>(context_tokens_),
           .max_row_overlap_tokens = OverlapTokens(options, device_->device().kind),
           .prefix_caching = options.pool.prefix_caching,
           .partial_page_reuse = engine.partial_page_reuse,
           .hash_key = RandomHashKey()}));
  QUIRE_RETURN_IF_ERROR(RunOneToken(cache.get(), runner_.get()));
  QUIRE_ASSIGN_OR_RETURN(engine_, engine::Engine::Create(engine, std::move(cache), runner_.get(),
                                                         tokenizer_.get(), clock, metrics));
  return absl::OkStatus();
}

absl::StatusOr<TranslatorOptions> ModelStack::TranslationFor(const DaemonOptions& options) const {
  const engine::EngineOptions engine = EngineOptionsFor(options);
  TranslatorOptions translation;
  translation.model_id = engine.model_id;
  translation.aliases = options.model.aliases;
  translation.sampling_defaults = ResolveSampling(model_->generation, options.sampling);
  translation.limits = engine.limits;
  translation.default_max_tokens = options.default_max_tokens;
  translation.stream_interval_tokens = options.stream_interval_tokens;
  translation.queue_timeout = engine.queue_timeout;
  translation.max_request_duration = engine.max_request_duration;
  QUIRE_ASSIGN_OR_RETURN(const models::ModelFiles files, OpenModelFiles(options.model));
  QUIRE_ASSIGN_OR_RETURN(translation.chat, LoadChatTemplates(options.chat, files, *tokenizer_));
  return translation;
}

absl::Status ModelStack::Follow(LiveConfig* live) {
  return live->Subscribe(
      "model", [this](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
        const engine::HotOptions hot = EngineOptionsFor(next);
        QUIRE_RETURN_IF_ERROR(engine_->PrepareHotOptions(hot));
        QUIRE_ASSIGN_OR_RETURN(TranslatorOptions translated, TranslationFor(next));
        auto translation = std::make_shared<const TranslatorOptions>(std::move(translated));
        // Before the engine: it refuses what the translator let through under the old limits.
        return [this, hot, translation] {
          served_->translator.SetOptions(translation);
          engine_->SetHotOptions(hot);
        };
      });
}

absl::Status ModelStack::Describe(const DaemonOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(TranslatorOptions translation, TranslationFor(options));
  const engine::EngineOptions engine = EngineOptionsFor(options);
  const cache::KvGeometry& geometry = pool_->geometry();
  ModelDescription description;
  description.architecture = model_->architecture;
  // On CPUs whatever the weights are.
  description.dtype = std::string(
      device_->is_cpu() ? "f32" : DTypeName(CudaActivationType(options)));
  description.batch_invariant = device_->is_cpu() || options.determinism != "fast";
  description.quantization = model_->quantization;
  description.max_context_tokens = context_tokens_;
  description.vocab_size = engine.vocab_size;
  description.eos_token_ids = engine.eos_token_ids;
  description.bos_token_id = tokenizer_->bos_token_id();
  if (!description.bos_token_id) description.bos_token_id = model_->config.bos_id;
  description.pad_token_id = tokenizer_->pad_token_id();
  if (!description.pad_token_id) description.pad_token_id = model_->config.pad_id;
  description.weights_fingerprint = model_->fingerprint;
  description.parameter_count = model_->parameter_count;
  description.load_time = absl::Now();
  description.kv_page_size = static_cast<std::int32_t>(geometry.page_size);
  description.kv_page_count = static_cast<std::int32_t>(geometry.num_blocks - 1);
  description.kv_group_count = static_cast<std::int32_t>(layers_.groups.size());
  description.kv_dtype = engine.kv_dtype;
  description.weight_bytes = model_->weight_bytes;
  description.pool_bytes = pool_->size_bytes();
  description.workspace_bytes = workspace_bytes_;
  served_ = std::make_unique<ServedModel>(RequestTranslator(std::move(translation)),
                                          std::move(description), device_->Describe(),
                                          tokenizer_.get(), engine_.get());
  return absl::OkStatus();
}

}  // namespace quire::server
