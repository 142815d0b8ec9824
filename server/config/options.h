#pragma once

// Plain option structs for the components of the daemon, converted from the configuration in one
// place. The components do not depend on the schema. All defaults are those of the schema.
//
// Place:      between LayeredConfig and the daemon.
// Invariants: every key of the schema is read here, except `profile` and `schema_version`, which
//             LayeredConfig reads. The test config_keys compares the keys of the schema with those
//             that are read here.
// Threads:    plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/logging.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/request/engine_options.h"
#include "runtime/runtime_options.h"
#include "server/auth/auth_options.h"
#include "server/config/layered_config.h"
#include "server/tracing/trace_exporter.h"
#include "text/chat/chat_template.h"

namespace quire::server {

struct KeepaliveOptions {
  absl::Duration time, timeout, min_ping_interval;
  bool permit_without_calls = true;
};

// Transport of both gRPC listeners.
struct GrpcTransportOptions {
  bool reuse_port = false;
  std::int64_t max_receive_message_bytes = 0;
  std::int64_t max_send_message_bytes = 0;
  std::int32_t max_concurrent_streams = 0;
  std::int64_t max_metadata_bytes = 0;
  std::int32_t max_connections = 0;
  bool max_connections_is_default = false;
  std::int32_t max_connections_per_address = 0;
  std::int64_t memory_bytes = 0;  // per listener
  KeepaliveOptions keepalive;
  absl::Duration max_connection_age;  // infinite: no limit
  absl::Duration max_connection_age_grace;
  bool reflection = true;
};

struct HttpOptions {
  std::string listen;  // empty: no listener
  std::int32_t threads = 0;
  bool tls = false;
  std::int32_t max_connections = 0;
  std::optional<std::int32_t> max_connections_per_address;  // absent: depends on the address
};

struct OpenAiOptions {
  bool enabled = false;
  std::string listen;
  std::int32_t max_connections = 0;
  std::optional<std::int32_t> max_connections_per_address;  // absent: depends on the address
  std::int64_t max_body_bytes = 0;
  std::vector<std::string> allowed_origins;
  bool refuses_unknown_fields = true;
};

// Defaults of sampling parameters. An absent value is taken from the model, or else from the
// defaults of the API.
struct SamplingDefaults {
  std::optional<float> temperature, top_p, min_p;
  std::optional<std::int32_t> top_k;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
};

struct ChatTemplateOptions {
  std::string template_file;  // empty: use the model's own template
  std::string tool_format;    // name of a format, "auto" or "none"
  text::ChatOptions rendering;
};

struct ShutdownOptions {
  absl::Duration pre_drain_delay, drain_timeout, force_timeout;
};

struct DaemonOptions {
  std::vector<std::string> grpc_listen;
  bool vllm_service = false;
  std::vector<std::string> admin_listen;
  bool admin_listen_is_default = false;  // true: the daemon searches for a usable path
  std::uint32_t admin_socket_mode = 0;
  GrpcTransportOptions transport;
  HttpOptions http;
  OpenAiOptions openai;
  TlsOptions tls;
  AuthOptions auth;
  bool metrics_enabled = true;
  absl::Duration engine_stall_timeout;
  std::optional<std::string> model_id;  // absent: use the name of the directory
  std::vector<std::string> model_aliases;
  runtime::ModelOptions model;
  runtime::PoolOptions pool;
  // Set from the sections scheduler, limits, stream and tokenizer and from structured.mask_threads.
  // The daemon sets the members that depend on the model.
  engine::EngineOptions engine;
  // True if no layer sets max_running_sequences. A model with recurrent layers then runs as many
  // sequences as there is memory for their states, up to the default.
  bool running_sequences_is_default = false;
  bool text_threads_is_auto = false;
  bool mask_threads_is_auto = false;  // true: as many as engine.text_threads
  engine::ConstraintOptions constraints;
  std::vector<engine::ConstraintSpec> preload;         // compiled before the daemon is ready
  std::optional<std::int32_t> max_tokens_per_request;  // absent: the context length
  std::int32_t default_max_tokens = 0;
  std::int32_t stream_interval_tokens = 0;
  runtime::DeviceOptions device;
  SamplingDefaults sampling;
  ChatTemplateOptions chat;
  ShutdownOptions shutdown;
  log::Options logging;
  bool access_log = true;
  TracingOptions tracing;
};

DaemonOptions ToOptions(const LayeredConfig& config);

}  // namespace quire::server
