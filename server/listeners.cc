#include "server/listeners.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/logging.h"
#include "base/private_dir.h"
#include "base/status.h"
#include "server/auth/authenticator.h"
#include "server/build_info.h"
#include "server/config/validator.h"
#include "server/descriptor_limit.h"
#include "server/dialects/dialect_endpoints.h"
#include "server/engine_stack.h"
#include "server/http/ops_handlers.h"
#include "server/http/status_handlers.h"

namespace quire::server {
namespace {

// See GrpcListener::KeepPolling.
constexpr absl::Duration kPollInterval = absl::Milliseconds(250);
// Interval of GrpcListener::CheckReachable and HttpServer::CheckReachable.
constexpr absl::Duration kCheckInterval = absl::Seconds(5);

// Creates `path`, a directory below /run, and returns true if it is writable. An existing directory
// can be trusted, because only root can create one there.
bool MakeRunDir(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return false;
  return access(path.c_str(), W_OK | X_OK) == 0;
}

// Adds the configuration key of the address to an error, and the remedy if the address is in use.
absl::Status WithKey(const absl::Status& status, absl::string_view key) {
  if (status.ok()) return status;
  std::string remedy;
  if (absl::IsAlreadyExists(status)) {
    remedy = absl::StrCat("; set another address with --set ", key,
                          "=ADDRESS, or shift all addresses with --port-offset N");
  }
  return absl::Status(status.code(), absl::StrCat(key, ": ", status.message(), remedy));
}

// Returns server.admin.listen, or the first usable path if no layer of the configuration sets it.
// `quire` tries the same paths. An existing folder that other users can write to is an error,
// because another user could replace the socket and impersonate the daemon.
absl::StatusOr<std::vector<std::string>> AdminAddresses(const DaemonOptions& options) {
  if (!options.admin_listen_is_default) return options.admin_listen;
  if (MakeRunDir("/run/quire")) return options.admin_listen;
  const std::string& preferred = options.admin_listen.front();
  const std::string file = preferred.substr(preferred.rfind('/'));
  std::vector<std::string> folders;
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr) folders.push_back(absl::StrCat(runtime_dir, "/quire"));
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  folders.push_back(absl::StrCat(error ? "/tmp" : temporary.string(), "/quire-", geteuid()));
  for (const std::string& folder : folders) {
    const absl::Status made = MakePrivateDir(folder);
    if (made.ok()) return std::vector<std::string>{absl::StrCat("unix:", folder, file)};
    if (!absl::IsUnavailable(made)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the folder of the admin socket, ", made.message()));
    }
  }
  log::Warn("server", "cannot create a directory for the admin socket",
            {{"last_tried", folders.back()}});
  return std::vector<std::string>();
}

std::int32_t NumHttpConnections(const DaemonOptions& options) {
  return (options.http.listen.empty() ? 0 : options.http.max_connections) +
         (options.openai.enabled ? options.openai.max_connections : 0);
}

}  // namespace

Listeners::Listeners(const DaemonOptions& options, absl::Time start_time, ServingState* state,
                     probe::Registry* metrics)
    : options_(options),
      start_time_(start_time),
      state_(state),
      metrics_(metrics),
      probe_(metrics, ServedModelId(options)) {}

absl::Status Listeners::Start(const HandlerContext& context, DrainControl* drain, LiveConfig* live,
                              const CertificateStore* certificates) {
  context_ = context;
  admin_ = MakeAdminService(context_, drain, live);
  QUIRE_RETURN_IF_ERROR(StartGrpc(certificates));
  return StartHttp(drain, certificates);
}

std::vector<grpc::Service*> Listeners::MakeDataServices() {
  generation_ = MakeGenerationService(
      context_, {.version = kVersion,
                 .git_commit = kGitCommit,
                 .build_type = kBuildType,
                 .start_time = start_time_,
                 .max_receive_message_bytes = options_.transport.max_receive_message_bytes});
  if (!options_.vllm_service) return {generation_.get()};
  vllm_ = MakeVllmService(context_, {.version = kVersion,
                                     .start_time = start_time_,
                                     .model_path = options_.model.path,
                                     .has_own_files = options_.model.path != "embedded"});
  return {generation_.get(), vllm_.get()};
}

absl::Status Listeners::StartGrpc(const CertificateStore* certificates) {
  const std::vector<grpc::Service*> data_services = MakeDataServices();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> admin_addresses, AdminAddresses(options_));
  GrpcTransportOptions transport = options_.transport;
  transport.max_connections =
      LimitGrpcConnections(transport.max_connections, admin_addresses.empty() ? 1 : 2,
                           NumHttpConnections(options_), transport.max_connections_is_default);
  auto data = GrpcListener::Start({.addresses = options_.grpc_listen,
                                   .transport = transport,
                                   .certificates = certificates,
                                   .peers = &peers_,
                                   .registry = metrics_},
                                  data_services);
  if (!data.ok()) return WithKey(data.status(), "server.grpc.listen");
  data_listener_ = *std::move(data);
  std::vector<GrpcListener*> listeners = {data_listener_.get()};
  if (!admin_addresses.empty()) {
    auto admin = GrpcListener::Start({.addresses = admin_addresses,
                                      .socket_mode = options_.admin_socket_mode,
                                      .transport = transport,
                                      .certificates = certificates,
                                      .peers = &peers_,
                                      .registry = metrics_},
                                     {admin_.get()});
    if (!admin.ok()) return WithKey(admin.status(), "server.admin.listen");
    admin_listener_ = *std::move(admin);
    listeners.push_back(admin_listener_.get());
  }
  {
    MutexLock lock(&health_mutex_);
    std::vector<std::string> ready_names = {"quire.v1.GenerationService"};
    if (vllm_ != nullptr) ready_names.push_back("vllm.grpc.engine.VllmEngine");
    health_ = std::make_unique<HealthService>(state_, std::move(listeners), std::move(ready_names));
  }
  UpdateHealth();
  return absl::OkStatus();
}

absl::Status Listeners::StartHttp(const DrainControl* drain, const CertificateStore* certificates) {
  if (options_.openai.enabled) {
    auto openai = OpenAiListener::Start(context_, certificates,
                                        {.version = kVersion,
                                         .model_path = options_.model.path,
                                         .has_own_files = options_.model.path != "embedded",
                                         .metrics = options_.metrics_enabled ? metrics_ : nullptr},
                                        DialectTables());
    if (!openai.ok()) return WithKey(openai.status(), "openai.listen");
    openai_listener_ = *std::move(openai);
  }
  if (!options_.http.listen.empty()) {
    auto http = StartHttpListener(
        {.address = options_.http.listen,
         .num_threads = options_.http.threads,
         .max_connections = options_.http.max_connections,
         .max_connections_per_address = options_.http.max_connections_per_address},
        MakeHandlers(drain, certificates), options_.http.tls ? certificates : nullptr);
    if (!http.ok()) return WithKey(http.status(), "server.http.listen");
    http_listener_ = *std::move(http);
    ListenAddress address;
    QUIRE_CHECK(ParseListenAddress(http_listener_->address(), &address));
    if (openai_listener_ != nullptr) openai_listener_->AllowStatusPage(address.port);
  }
  return absl::OkStatus();
}

HttpHandlers Listeners::MakeHandlers(const DrainControl* drain,
                                     const CertificateStore* certificates) const {
  ListenAddress address;
  const bool is_loopback =
      ParseListenAddress(options_.http.listen, &address) && address.is_loopback();
  // Client certificates protect the other listeners; this one does not request them.
  const bool has_tokens = options_.auth.mode == AuthMode::kToken;
  const bool checks_host = is_loopback && !has_tokens;
  HttpHandlers handlers = MakeOpsHandlers(state_, options_.metrics_enabled ? metrics_ : nullptr,
                                          context_.authenticator, checks_host);
  AddStatusHandlers(
      {.state = state_,
       .drain = drain,
       .history = &history_,
       .authenticator = context_.authenticator,
       .version = kVersion,
       .start_time = start_time_,
       .is_open = is_loopback || has_tokens,
       .checks_host = checks_host,
       .openai_address = openai_listener_ == nullptr ? "" : openai_listener_->address(),
       .openai_has_tls = openai_listener_ != nullptr && certificates != nullptr},
      &handlers);
  return handlers;
}

void Listeners::LogAddresses() const {
  log::Info(
      "server", "listening",
      {{"grpc", absl::StrJoin(data_listener_->addresses(), ",")},
       {"admin", admin_listener_ == nullptr ? std::string()
                                            : absl::StrJoin(admin_listener_->addresses(), ",")},
       {"http", http_listener_ == nullptr ? std::string() : http_listener_->address()},
       {"openai", openai_listener_ == nullptr ? std::string() : openai_listener_->address()},
       {"pid", getpid()},
       {"version", kVersion}});
}

std::string Listeners::OpenAiUrl() const {
  if (openai_listener_ == nullptr) return "";
  ListenAddress address;
  QUIRE_CHECK(ParseListenAddress(openai_listener_->address(), &address));
  const std::string authority = address.is_wildcard() ? absl::StrCat("127.0.0.1:", address.port)
                                                      : openai_listener_->address();
  return absl::StrCat(options_.tls.enabled() ? "https://" : "http://", authority, "/v1");
}

void Listeners::UpdateHealth() {
  MutexLock lock(&health_mutex_);
  if (health_ != nullptr) health_->Update();
}

void Listeners::Tick(absl::Time now) {
  if (const ServedModel* model = state_->model(); model != nullptr && now >= next_sample_) {
    next_sample_ = now + StatusHistory::kInterval;
    history_.Add(now, model->engine->GetStats());
  }
  if (now >= next_check_) {
    next_check_ = now + kCheckInterval;
    data_listener_->CheckReachable();
    if (openai_listener_ != nullptr) openai_listener_->CheckReachable();
  }
  if (now >= next_poll_) {
    next_poll_ = now + kPollInterval;
    data_listener_->KeepPolling();
    if (admin_listener_ != nullptr) admin_listener_->KeepPolling();
  }
}

const char* Listeners::FindUnresponsive() const {
  if (!data_listener_->is_reachable()) return "gRPC";
  if (openai_listener_ != nullptr && !openai_listener_->is_reachable()) return "OpenAI";
  return nullptr;
}

void Listeners::Close(absl::Time deadline) {
  data_listener_->Shutdown(deadline);
  if (admin_listener_ != nullptr) admin_listener_->Shutdown(deadline);
  if (openai_listener_ != nullptr) openai_listener_->Shutdown(deadline);
  http_listener_.reset();
  MutexLock lock(&health_mutex_);
  health_.reset();
}

}  // namespace quire::server
