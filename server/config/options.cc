#include "server/config/options.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "base/check.h"
#include "hub/cache/model_cache.h"
#include "quire/config/v1/config.pb.h"
#include "server/config/scalar_value.h"

namespace quire::server {
namespace {

using config::v1::Config;

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

// Returns the YAML name of an enum value, such as "avx2" for CPU_ISA_AVX2.
template <typename Enum>
std::string NameOf(Enum value) {
  return EnumName(google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value));
}

// Returns the counterpart of `value` in `table`, which lists every value except 0 (UNSPECIFIED). A
// loaded configuration has no enum key with the value 0.
template <typename To, typename From>
To Convert(From value, std::initializer_list<std::pair<From, To>> table) {
  const auto found = std::ranges::find(table, value, &std::pair<From, To>::first);
  QUIRE_CHECK(found != table.end());
  return found->second;
}

template <typename List>
std::vector<std::string> ToVector(const List& list) {
  return std::vector<std::string>(list.begin(), list.end());
}

// Reads the key that HttpConfig and OpenAiConfig share.
template <typename Listener>
std::optional<std::int32_t> MaxPerAddress(const Listener& from) {
  if (!from.has_max_connections_per_address()) return std::nullopt;
  return from.max_connections_per_address();
}

void ReadListeners(const Config& config, DaemonOptions* options) {
  const auto& grpc = config.server().grpc();
  options->grpc_listen = ToVector(grpc.listen());
  options->vllm_service = grpc.vllm_service();
  options->admin_listen = ToVector(config.server().admin().listen());
  options->admin_socket_mode =
      static_cast<std::uint32_t>(std::stoul(config.server().admin().socket_mode(), nullptr, 8));
  GrpcTransportOptions& transport = options->transport;
  transport.reuse_port = grpc.reuse_port();
  transport.max_receive_message_bytes = grpc.max_receive_message_bytes();
  transport.max_send_message_bytes = grpc.max_send_message_bytes();
  transport.max_concurrent_streams = grpc.max_concurrent_streams();
  transport.max_metadata_bytes = grpc.max_metadata_bytes();
  transport.max_connections = grpc.max_connections();
  transport.max_connections_per_address = grpc.max_connections_per_address();
  transport.memory_bytes = grpc.memory_bytes();
  transport.keepalive = {.time = ToDuration(grpc.keepalive().time()),
                         .timeout = ToDuration(grpc.keepalive().timeout()),
                         .min_ping_interval = ToDuration(grpc.keepalive().min_ping_interval()),
                         .permit_without_calls = grpc.keepalive().permit_without_calls()};
  transport.max_connection_age = grpc.has_max_connection_age()
                                     ? ToDuration(grpc.max_connection_age())
                                     : absl::InfiniteDuration();
  transport.max_connection_age_grace = ToDuration(grpc.max_connection_age_grace());
  transport.reflection = grpc.reflection();
  const auto& http = config.server().http();
  options->http = {.listen = http.listen(),
                   .threads = http.threads(),
                   .tls = http.tls(),
                   .max_connections = http.max_connections(),
                   .max_connections_per_address = MaxPerAddress(http)};
  const auto& openai = config.openai();
  options->openai = {
      .enabled = openai.enabled(),
      .listen = openai.listen(),
      .max_connections = openai.max_connections(),
      .max_connections_per_address = MaxPerAddress(openai),
      .max_body_bytes = openai.max_body_bytes(),
      .allowed_origins = ToVector(openai.allowed_origins()),
      .refuses_unknown_fields = openai.unknown_fields() != config::v1::UNKNOWN_FIELD_POLICY_WARN};
  options->metrics_enabled = config.metrics().enabled();
  options->engine_stall_timeout = ToDuration(config.health().engine_stall_timeout());
}

void ReadSecurity(const Config& config, DaemonOptions* options) {
  const auto& tls = config.tls();
  options->tls = {.cert_file = tls.cert_file(),
                  .key_file = tls.key_file(),
                  .client_ca_file = tls.client_ca_file(),
                  .require_client_cert = tls.require_client_cert(),
                  .refresh_interval = ToDuration(tls.refresh_interval())};
  const auto& auth = config.auth();
  options->auth = {
      .mode = Convert<AuthMode>(auth.mode(), {{config::v1::AUTH_MODE_NONE, AuthMode::kNone},
                                              {config::v1::AUTH_MODE_TOKEN, AuthMode::kToken},
                                              {config::v1::AUTH_MODE_MTLS, AuthMode::kMtls}}),
      .tokens_file = auth.tokens_file(),
      .trust_tenant_metadata = auth.trust_tenant_metadata()};
  for (const int scope : auth.anonymous_scopes()) {
    options->auth.anonymous_scopes.Add(
        ScopeFromName(NameOf(static_cast<config::v1::AuthScope>(scope))).value());
  }
}

// Converts TenantLimits or TenantPolicy, which have the same keys.
template <typename Limits>
engine::TenantLimits ToTenantLimits(const Limits& from) {
  engine::TenantLimits limits;
  if (from.has_max_running_requests()) limits.max_running_requests = from.max_running_requests();
  if (from.has_max_queued_requests()) limits.max_queued_requests = from.max_queued_requests();
  if (from.has_max_queued_tokens()) limits.max_queued_tokens = from.max_queued_tokens();
  if (from.has_most_urgent_priority()) {
    limits.most_urgent_priority = from.most_urgent_priority();
  }
  return limits;
}

void ReadTenants(const Config& config, engine::TenantOptions* tenants) {
  tenants->defaults = ToTenantLimits(config.tenants().defaults());
  for (const auto& entry : config.tenants().entries()) {
    tenants->entries[entry.id()] = ToTenantLimits(entry);
  }
}

void ReadDevice(const Config& config, runtime::DeviceOptions* options) {
  const auto& device = config.device();
  options->type = Convert<runtime::DeviceChoice>(
      device.type(), {{config::v1::DEVICE_TYPE_AUTO, runtime::DeviceChoice::kAuto},
                      {config::v1::DEVICE_TYPE_CPU, runtime::DeviceChoice::kCpu},
                      {config::v1::DEVICE_TYPE_CUDA, runtime::DeviceChoice::kCuda}});
  // The validator ensures that there is one id.
  options->cuda_ordinal = device.ids(0);
  options->reserve_bytes = device.reserve_bytes();
  if (device.cpu().has_threads()) options->threads = device.cpu().threads();
  options->pin_threads = device.cpu().pin_threads();
  options->isa = NameOf(device.cpu().isa());
  options->activations = Convert<kernels::CpuActivations>(
      device.cpu().activations(),
      {{config::v1::CPU_ACTIVATIONS_AUTO, kernels::CpuActivations::kAuto},
       {config::v1::CPU_ACTIVATIONS_F32, kernels::CpuActivations::kF32},
       {config::v1::CPU_ACTIVATIONS_BF16, kernels::CpuActivations::kBF16},
       {config::v1::CPU_ACTIVATIONS_INT8, kernels::CpuActivations::kInt8}});
  options->determinism = NameOf(config.engine().determinism());
  options->cuda_graphs = config.engine().cuda_graphs().enabled();
  options->hopper_kernels = device.hopper_kernels();
}

void ReadModel(const Config& config, DaemonOptions* options) {
  const auto& model = config.model();
  // The validator reports a missing model. LocateModel therefore fails only if the model was
  // removed since then, and opening the files reports that.
  options->model.path = hub::LocateModel(model.path()).value_or(model.path());
  if (model.dtype() == config::v1::MODEL_DATA_TYPE_BF16) options->model.dtype = DType::kBF16;
  if (model.dtype() == config::v1::MODEL_DATA_TYPE_F32) options->model.dtype = DType::kF32;
  options->model.quantization = models::QuantizationFromName(NameOf(model.quantization())).value();
  options->model.fp8_activations = model.fp8_activations();
  options->model.packed_dir = model.packed_dir();
  options->model.dummy_weights = model.load_mode() == config::v1::LOAD_MODE_DUMMY;
  if (model.has_id()) options->model_id = model.id();
  options->model_aliases = ToVector(model.aliases());
  if (model.has_max_context_tokens()) {
    options->model.max_context_tokens = model.max_context_tokens();
  }
  const auto& cache = config.kv_cache();
  options->pool.page_size = static_cast<std::uint32_t>(cache.page_size());
  options->pool.dtype =
      Convert<DType>(cache.dtype(), {{config::v1::KV_DATA_TYPE_F32, DType::kF32},
                                     {config::v1::KV_DATA_TYPE_BF16, DType::kBF16},
                                     {config::v1::KV_DATA_TYPE_F16, DType::kF16},
                                     {config::v1::KV_DATA_TYPE_FP8_E4M3, DType::kF8E4M3},
                                     {config::v1::KV_DATA_TYPE_INT8, DType::kI8}});
  if (cache.has_capacity_bytes()) options->pool.capacity_bytes = cache.capacity_bytes();
  options->pool.memory_share = config.device().cpu().kv_memory_share();
  options->pool.state_share = cache.state_share();
  options->pool.prefix_caching = cache.prefix_caching();
  options->pool.partial_page_reuse = cache.partial_page_reuse();
}

void ReadEngine(const Config& config, DaemonOptions* options) {
  engine::EngineOptions& engine = options->engine;
  const auto& scheduler = config.scheduler();
  engine.max_steps_in_flight = config.engine().overlap_scheduling() ? 2 : 1;
  engine.max_step_tokens = scheduler.max_step_tokens();
  engine.prefill_chunk_tokens = scheduler.prefill_chunk_tokens();
  // On the CPU, more rows do not make matrix products more efficient. AdaptEngineOptions removes
  // this limit for GPUs.
  engine.max_step_prompt_tokens = 512;
  if (scheduler.has_step_time_target()) {
    engine.step_time_target = ToDuration(scheduler.step_time_target());
  }
  engine.max_running_sequences = scheduler.max_running_sequences();
  engine.admission = scheduler.admission() == config::v1::ADMISSION_OVERCOMMIT
                         ? engine::AdmissionMode::kOvercommit
                         : engine::AdmissionMode::kSafe;
  if (scheduler.has_queue_timeout()) engine.queue_timeout = ToDuration(scheduler.queue_timeout());
  engine.priority_aging_interval = ToDuration(scheduler.priority_aging_interval());

  const auto& limits = config.limits();
  engine.limits.max_choices = limits.max_choices();
  engine.limits.max_logprobs = limits.max_logprobs();
  engine.limits.max_stop_sequences = limits.max_stop_sequences();
  engine.limits.max_stop_bytes = limits.max_stop_bytes();
  engine.limits.max_logit_bias_entries = limits.max_logit_bias_entries();
  engine.max_queued_requests = limits.max_queued_requests();
  engine.max_queued_tokens = limits.has_max_queued_tokens()
                                 ? limits.max_queued_tokens()
                                 : std::numeric_limits<std::int64_t>::max();
  engine.max_queued_bytes = limits.max_queued_bytes();
  if (limits.has_max_request_duration()) {
    engine.max_request_duration = ToDuration(limits.max_request_duration());
  }
  if (limits.has_max_tokens_per_request()) {
    options->max_tokens_per_request = limits.max_tokens_per_request();
  }
  options->default_max_tokens = limits.default_max_tokens();

  engine.max_input_bytes = config.tokenizer().max_input_bytes();
  options->text_threads_is_auto = !config.tokenizer().has_threads();
  if (config.tokenizer().has_threads()) engine.text_threads = config.tokenizer().threads();
  engine.stream_queue_tokens = config.stream().queue_tokens();
  engine.slow_client_timeout = ToDuration(config.stream().slow_client_timeout());
  options->stream_interval_tokens = config.stream().interval_tokens();
}

void ReadStructured(const Config& config, DaemonOptions* options) {
  const auto& structured = config.structured();
  engine::ConstraintOptions& constraints = options->constraints;
  constraints.compile_threads = structured.compile_threads();
  constraints.max_schema_bytes = structured.max_schema_bytes();
  constraints.max_compiled_bytes = structured.max_compiled_bytes();
  constraints.cache_bytes = structured.cache_bytes();
  options->mask_threads_is_auto = !structured.has_mask_threads();
  if (structured.has_mask_threads()) options->engine.mask_threads = structured.mask_threads();
}

// REQUIRES: the configuration is valid, so each entry has exactly one key.
void ReadPreload(const Config& config, std::vector<engine::ConstraintSpec>* preload) {
  for (const auto& entry : config.structured().preload()) {
    engine::ConstraintSpec spec;
    if (!entry.json_schema().empty()) {
      spec.kind = engine::ConstraintKind::kJsonSchema;
      spec.text = entry.json_schema();
    } else if (!entry.regex().empty()) {
      spec.kind = engine::ConstraintKind::kRegex;
      spec.text = entry.regex();
    } else {
      spec.kind = engine::ConstraintKind::kGrammar;
      spec.text = entry.ebnf_grammar();
    }
    preload->push_back(std::move(spec));
  }
}

void ReadChat(const Config& config, ChatTemplateOptions* options) {
  const auto& chat = config.chat();
  options->template_file = chat.template_file();
  options->tool_format = chat.tool_format();
  text::ChatOptions& rendering = options->rendering;
  rendering.default_template_name = chat.default_template_name();
  rendering.default_vars_json = chat.default_vars();
  // The rendered text is a prompt, so the limit of prompts applies too.
  rendering.limits.max_bytes =
      std::min(chat.max_render_bytes(), config.tokenizer().max_input_bytes());
  rendering.max_request_template_bytes = chat.max_request_template_bytes();
  rendering.limits.max_steps = chat.max_render_steps();
  const auto& limits = config.limits();
  rendering.json_limits = {.max_bytes = limits.max_json_bytes(),
                           .max_nodes = limits.max_json_nodes(),
                           .max_depth = limits.max_json_depth()};
  rendering.escape_special_in_content = chat.escape_special_in_content();
}

void ReadSampling(const Config& config, SamplingDefaults* sampling) {
  const auto& from = config.sampling_defaults();
  if (from.has_temperature()) sampling->temperature = from.temperature();
  if (from.has_top_p()) sampling->top_p = from.top_p();
  if (from.has_top_k()) sampling->top_k = from.top_k();
  if (from.has_min_p()) sampling->min_p = from.min_p();
  if (from.has_repetition_penalty()) sampling->repetition_penalty = from.repetition_penalty();
  if (from.has_presence_penalty()) sampling->presence_penalty = from.presence_penalty();
  if (from.has_frequency_penalty()) sampling->frequency_penalty = from.frequency_penalty();
}

// Returns true if no layer sets the key. --port-offset may have shifted its default.
bool IsBuiltIn(const Origins& origins, const std::string& path) {
  const auto origin = origins.find(path);
  return origin == origins.end() || origin->second.is_default() ||
         origin->second.layer == "--port-offset";
}

}  // namespace

DaemonOptions ToOptions(const LayeredConfig& layered) {
  const Config& config = layered.config();
  DaemonOptions options;
  ReadListeners(config, &options);
  options.admin_listen_is_default = IsBuiltIn(layered.origins(), "server.admin.listen");
  options.transport.max_connections_is_default =
      IsBuiltIn(layered.origins(), "server.grpc.max_connections");
  options.running_sequences_is_default =
      IsBuiltIn(layered.origins(), "scheduler.max_running_sequences");
  ReadSecurity(config, &options);
  ReadTenants(config, &options.engine.tenants);
  ReadDevice(config, &options.device);
  ReadModel(config, &options);
  ReadEngine(config, &options);
  ReadStructured(config, &options);
  ReadPreload(config, &options.preload);
  ReadSampling(config, &options.sampling);
  ReadChat(config, &options.chat);
  const auto& shutdown = config.shutdown();
  options.shutdown = {.pre_drain_delay = ToDuration(shutdown.pre_drain_delay()),
                      .drain_timeout = ToDuration(shutdown.drain_timeout()),
                      .force_timeout = ToDuration(shutdown.force_timeout())};
  const auto& logging = config.logging();
  options.logging = {
      .level = log::LevelFromName(NameOf(logging.level())).value(),
      .format = Convert<log::Format>(logging.format(),
                                     {{config::v1::LOG_FORMAT_TEXT, log::Format::kText},
                                      {config::v1::LOG_FORMAT_JSON, log::Format::kJson},
                                      {config::v1::LOG_FORMAT_AUTO, log::Format::kAuto}}),
      .file = logging.file(),
      .rate_limit_per_second = static_cast<std::uint32_t>(logging.rate_limit_per_second())};
  options.access_log = logging.access_log();
  options.tracing = {.endpoint = config.tracing().otlp_endpoint(),
                     .sample_ratio = config.tracing().sample_ratio()};
  return options;
}

}  // namespace quire::server
