#include "server/engine_stack.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/constraint/constraint_build.h"
#include "engine/constraint/grammar_library.h"
#include "hub/cache/model_cache.h"
#include "server/build_info.h"
#include "server/chat_templates.h"
#include "server/config/per_device_options.h"
#include "server/embedded_model.h"
#include "server/preloaded_constraints.h"

namespace quire::server {
namespace {

absl::StatusOr<formats::ModelFiles> OpenModelFiles(const runtime::ModelOptions& options) {
  if (options.path == "embedded") return EmbeddedModelFiles();
  return formats::ModelFiles::FromPath(options.path);
}

template <typename T>
void SetIfPresent(const std::optional<T>& value, T* target) {
  if (value) *target = *value;
}

// Returns an error if `next` cannot be used but `old` can.
absl::Status CheckReplacement(const text::ChatTemplates& old, const text::ChatTemplates& next) {
  if (next.problem().empty() || !old.problem().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("chat template: ", next.problem()));
}

// Priority: configuration, then generation_config.json, then the API's defaults.
engine::SamplingParams ResolveSampling(const models::GenerationDefaults& model,
                                       const SamplingDefaults& configured) {
  engine::SamplingParams params;
  SetIfPresent(model.temperature, &params.temperature);
  if (model.do_sample && !*model.do_sample) params.temperature = 0;
  SetIfPresent(model.top_p, &params.top_p);
  SetIfPresent(model.top_k, &params.top_k);
  SetIfPresent(model.min_p, &params.min_p);
  SetIfPresent(model.repetition_penalty, &params.repetition_penalty);
  SetIfPresent(configured.temperature, &params.temperature);
  SetIfPresent(configured.top_p, &params.top_p);
  SetIfPresent(configured.top_k, &params.top_k);
  SetIfPresent(configured.min_p, &params.min_p);
  SetIfPresent(configured.repetition_penalty, &params.repetition_penalty);
  SetIfPresent(configured.presence_penalty, &params.presence_penalty);
  SetIfPresent(configured.frequency_penalty, &params.frequency_penalty);
  return params;
}

engine::Pooling ToPooling(models::PoolingMode mode) {
  switch (mode) {
    case models::PoolingMode::kLast:
      return engine::Pooling::kLast;
    case models::PoolingMode::kMean:
      return engine::Pooling::kMean;
    case models::PoolingMode::kCls:
      return engine::Pooling::kCls;
  }
  return engine::Pooling::kLast;
}

std::optional<std::int32_t> FindBosToken(const runtime::ModelStack& loaded) {
  const std::optional<std::int32_t> named = loaded.tokenizer().bos_token_id();
  return named ? named : loaded.model().config.bos_id;
}

// Returns the text of each token id. The text is empty for end-of-sequence and padding tokens, and
// for special tokens, which are listed separately because they only serve as markers.
engine::ConstraintVocabulary MakeVocabulary(const models::ModelConfig& config,
                                            const text::Tokenizer& tokenizer) {
  const std::vector<std::int32_t>& ends = config.eos_ids;
  engine::ConstraintVocabulary vocabulary;
  vocabulary.tokens.resize(static_cast<std::size_t>(config.vocab_size));
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const bool is_end = std::find(ends.begin(), ends.end(), id) != ends.end();
    if (is_end || !tokenizer.HasText(id)) continue;
    std::string text = tokenizer.TokenBytes(id);
    if (!tokenizer.IsSpecial(id)) {
      vocabulary.tokens[i] = std::move(text);
    } else if (!text.empty() && !FirstInvalidUtf8(text)) {
      vocabulary.special.emplace_back(std::move(text), id);
    }
  }
  return vocabulary;
}

// Returns null for a model that generates nothing, and in a build without structured output.
absl::StatusOr<std::unique_ptr<engine::ConstraintCompiler>> MakeCompiler(
    const DaemonOptions& options, const models::ModelConfig& config, bool has_head,
    const text::Tokenizer& tokenizer, probe::Registry* metrics) {
  std::unique_ptr<engine::ConstraintCompiler> compiler;
  if (!has_head || engine::GrammarLibrary::Version().empty()) return compiler;
  QUIRE_ASSIGN_OR_RETURN(engine::ConstraintCompiler::BuildFunction build,
                         engine::MakeConstraintBuildFunction(MakeVocabulary(config, tokenizer)));
  compiler =
      std::make_unique<engine::ConstraintCompiler>(options.constraints, std::move(build), metrics);
  return compiler;
}

}  // namespace

std::string ServedModelId(const DaemonOptions& options) {
  if (options.model_id) return *options.model_id;
  const std::string& model = options.model.path;
  if (model == "embedded") return "story";
  if (std::string name = hub::RepositoryOfPath(model); !name.empty()) return name;
  std::filesystem::path path(model);
  if (!path.has_filename()) path = path.parent_path();  // the path has a trailing slash
  // Only GGUF files have an extension; directory names may contain dots.
  if (absl::EndsWithIgnoreCase(path.native(), ".gguf")) path = path.stem();
  return path.filename().string();
}

void ValidateModel(const DaemonOptions& options, std::vector<std::string>* errors) {
  const auto is_ok = [errors](const absl::Status& status) {
    if (!status.ok()) errors->emplace_back(status.message());
    return status.ok();
  };
  // The check forks, so it runs before a driver starts threads.
  const runtime::CpuCheck check = runtime::CheckCpu(options.device);
  is_ok(runtime::SelectCheckedIsa(options.device, check));
  const absl::StatusOr<DeviceKind> device = runtime::ChooseDevice(options.device);
  is_ok(device.status());
  is_ok(CheckPreload(options.preload));
  const absl::StatusOr<formats::ModelFiles> files = OpenModelFiles(options.model);
  if (!is_ok(files.status())) return;
  const auto tokenizer = runtime::OpenTokenizer(options.model, *files);
  LoadedChat chat;
  if (is_ok(tokenizer.status())) {
    absl::StatusOr<LoadedChat> loaded = LoadChatTemplates(options.chat, *files, **tokenizer);
    if (is_ok(loaded.status())) chat = *std::move(loaded);
  }
  if (!device.ok()) return;
  const absl::StatusOr<runtime::CheckedSpec> model = runtime::ReadModelSpec(*files, *device);
  if (!is_ok(model.status())) return;
  is_ok(runtime::CheckPlan(RuntimeOptionsFor(options, *device), *files, *model, *device));
  // Only compiling shows whether preloaded constraints are valid and fit into the cache.
  if (options.preload.empty() || !errors->empty()) return;
  const auto compiler =
      MakeCompiler(options, model->config, model->spec.has_head, **tokenizer, /*metrics=*/nullptr);
  if (!is_ok(compiler.status())) return;
  is_ok(PreloadConstraints(options.preload, chat.has_reasoning ? chat.tool_format : nullptr,
                           compiler->get()));
}

absl::Status CheckGpuKernels(const DaemonOptions& options, const runtime::CpuCheck& cpu_check,
                             std::vector<kernels::KernelCheck>* checks) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ComputeDevice> device,
                         runtime::ComputeDevice::Open(options.device, cpu_check));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, OpenModelFiles(options.model));
  const runtime::RuntimeOptions runtime = RuntimeOptionsFor(options, device->device().kind);
  return runtime::ModelStack::Build(runtime, files, std::move(device), checks).status();
}

absl::StatusOr<std::unique_ptr<EngineStack>> EngineStack::Build(const DaemonOptions& options,
                                                                const runtime::CpuCheck& cpu_check,
                                                                const Clock* clock,
                                                                probe::Registry* metrics) {
  QUIRE_RETURN_IF_ERROR(CheckPreload(options.preload));
  std::unique_ptr<EngineStack> stack(new EngineStack());
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ComputeDevice> device,
                         runtime::ComputeDevice::Open(options.device, cpu_check));
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, OpenModelFiles(options.model));
  const runtime::RuntimeOptions runtime = RuntimeOptionsFor(options, device->device().kind);
  QUIRE_ASSIGN_OR_RETURN(stack->loaded_,
                         runtime::ModelStack::Build(runtime, files, std::move(device)));
  runtime::ModelStack& loaded = *stack->loaded_;
  QUIRE_ASSIGN_OR_RETURN(stack->constraints_,
                         MakeCompiler(options, loaded.model().config, loaded.model().spec.has_head,
                                      loaded.tokenizer(), metrics));
  QUIRE_ASSIGN_OR_RETURN(TranslatorOptions translation, stack->TranslatorOptionsFor(options));
  QUIRE_RETURN_IF_ERROR(PreloadConstraints(
      options.preload, translation.has_reasoning ? translation.tool_format : nullptr,
      stack->constraints_.get()));
  QUIRE_ASSIGN_OR_RETURN(
      stack->engine_, engine::Engine::Create(stack->MakeEngineOptions(options), loaded.TakeCache(),
                                             loaded.runner(), &loaded.tokenizer(), clock, metrics));
  stack->served_ = std::make_unique<ServedModel>(RequestTranslator(std::move(translation)),
                                                 stack->Describe(options), loaded.DescribeDevice(),
                                                 &loaded.tokenizer(), stack->engine_.get());
  return stack;
}

engine::EngineOptions EngineStack::MakeEngineOptions(const DaemonOptions& options) const {
  const runtime::Model& model = loaded_->model();
  const runtime::ComputeDevice& device = loaded_->device();
  engine::EngineOptions engine = AdaptEngineOptions(options.engine, device.device().kind);
  if (options.running_sequences_is_default) {
    engine.max_running_sequences =
        std::min(engine.max_running_sequences, static_cast<std::int32_t>(loaded_->max_rows()));
  }
  engine.model_id = ServedModelId(options);
  engine.fingerprint = model.fingerprint;
  engine.vocab_size = static_cast<std::int32_t>(model.config.vocab_size);
  engine.max_context_tokens = loaded_->context_tokens();
  engine.eos_token_ids = model.config.eos_ids;
  engine.bos_token_id = FindBosToken(*loaded_);
  engine.has_head = model.spec.has_head;
  engine.kv_dtype = std::string(DTypeName(options.pool.dtype));
  engine.limits.vocab_size = engine.vocab_size;
  engine.limits.max_tokens_per_request =
      options.max_tokens_per_request.value_or(engine.max_context_tokens);
  if (device.is_cpu()) {
    engine.fingerprint = PageFingerprint(model.fingerprint, device.backend().activations());
    // The engine thread computes the first part of every op, so it is bound like a pool thread.
    engine.on_engine_thread = [pool = &device.threads()] { pool->BindCaller(); };
  } else {
    engine.share_generated_pages = options.device.determinism != "strict";
  }
  if (options.text_threads_is_auto) {
    engine.text_threads = std::max(1, Machine::Detect().physical_cores() / 8);
  }
  if (options.mask_threads_is_auto) engine.mask_threads = engine.text_threads;
  engine.constraints = constraints_.get();
  engine.partial_page_reuse = options.pool.partial_page_reuse;
  return engine;
}

absl::StatusOr<TranslatorOptions> EngineStack::TranslatorOptionsFor(
    const DaemonOptions& options) const {
  const engine::EngineOptions engine = MakeEngineOptions(options);
  TranslatorOptions translation;
  translation.model_id = engine.model_id;
  translation.aliases = options.model_aliases;
  translation.sampling_defaults = ResolveSampling(loaded_->model().generation, options.sampling);
  translation.limits = engine.limits;
  translation.default_max_tokens = options.default_max_tokens;
  translation.stream_interval_tokens = options.stream_interval_tokens;
  translation.queue_timeout = engine.queue_timeout;
  translation.max_request_duration = engine.max_request_duration;
  QUIRE_ASSIGN_OR_RETURN(const formats::ModelFiles files, OpenModelFiles(options.model));
  QUIRE_ASSIGN_OR_RETURN(LoadedChat chat,
                         LoadChatTemplates(options.chat, files, loaded_->tokenizer()));
  translation.chat = std::move(chat.templates);
  translation.tool_format = chat.tool_format;
  translation.has_reasoning = chat.has_reasoning;
  return translation;
}

absl::Status EngineStack::Follow(LiveConfig* live) {
  return live->Subscribe(
      "model",
      [this](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
        const engine::HotOptions hot = MakeEngineOptions(next);
        QUIRE_RETURN_IF_ERROR(engine_->PrepareHotOptions(hot));
        QUIRE_ASSIGN_OR_RETURN(TranslatorOptions translated, TranslatorOptionsFor(next));
        QUIRE_RETURN_IF_ERROR(
            CheckReplacement(*served_->translator.options()->chat, *translated.chat));
        auto translation = std::make_shared<const TranslatorOptions>(std::move(translated));
        const engine::HotConstraintOptions constraints = next.constraints;
        // The translator is updated first. A request that it has accepted under the old limits is
        // checked by the engine against the new limits.
        return [this, hot, translation, constraints] {
          served_->translator.SetOptions(translation);
          engine_->SetHotOptions(hot);
          if (constraints_ != nullptr) constraints_->SetHotOptions(constraints);
        };
      },
      [](const DaemonOptions& next) { return ChatTemplateFiles(next.chat, next.model.path); });
}

ModelDescription EngineStack::Describe(const DaemonOptions& options) const {
  const runtime::Model& model = loaded_->model();
  const text::Tokenizer& tokenizer = loaded_->tokenizer();
  const cache::KvGeometry& geometry = loaded_->pool().geometry();
  ModelDescription description;
  description.architecture = model.architecture;
  description.dtype = std::string(DTypeName(loaded_->activation()));
  description.batch_invariant = loaded_->device().is_cpu() || options.device.determinism != "fast";
  description.quantization = model.quantization;
  description.max_context_tokens = loaded_->context_tokens();
  description.vocab_size = static_cast<std::int32_t>(model.config.vocab_size);
  description.eos_token_ids = model.config.eos_ids;
  description.bos_token_id = FindBosToken(*loaded_);
  description.pad_token_id = tokenizer.pad_token_id();
  if (!description.pad_token_id) description.pad_token_id = model.config.pad_id;
  description.weights_fingerprint = model.fingerprint;
  const runtime::ComputeDevice& device = loaded_->device();
  description.system_fingerprint = absl::StrCat(
      "fp_", model.fingerprint.substr(0, 10), "_",
      device.is_cpu() ? kernels::CpuActivationsName(device.backend().activations()) : "gpu", "_",
      DTypeName(options.pool.dtype), "_", absl::string_view(kGitCommit).substr(0, 8));
  description.parameter_count = model.parameter_count;
  description.load_time = absl::Now();
  description.kv_page_size = static_cast<std::int32_t>(geometry.page_size);
  description.kv_page_count = static_cast<std::int32_t>(geometry.num_blocks - 1);
  description.kv_group_count = static_cast<std::int32_t>(loaded_->layers().groups.size());
  description.kv_dtype = std::string(DTypeName(options.pool.dtype));
  description.has_head = model.spec.has_head;
  description.has_constraints = constraints_ != nullptr;
  if (loaded_->runner()->can_pool()) {
    description.embedding_width = static_cast<std::int32_t>(model.spec.hidden);
  }
  description.pooling = ToPooling(model.config.pooling.mode);
  description.normalizes_embeddings = model.config.pooling.normalize;
  if (!model.config.labels.empty()) {
    description.classifier = Classifier{model.config.labels, &model.label_weights};
  }
  if (const auto& score = model.config.pooling.logit_score) {
    description.yes_no = YesNoTokens{.yes = score->true_token_id, .no = score->false_token_id};
  }
  description.weight_bytes = model.weight_bytes;
  description.pool_bytes = loaded_->pool().size_bytes();
  description.workspace_bytes = loaded_->workspace_bytes();
  return description;
}

}  // namespace quire::server
