#include "server/daemon.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/machine.h"
#include "base/mutex.h"
#include "base/private_dir.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "runtime/compute_device.h"
#include "server/api/drain_control.h"
#include "server/api/generation.h"
#include "server/api/peer_table.h"
#include "server/api/server_probe.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/auth/certificate_store.h"
#include "server/build_info.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/config/validator.h"
#include "server/config/warnings.h"
#include "server/descriptor_limit.h"
#include "server/engine_stack.h"
#include "server/forced_exit_timer.h"
#include "server/grpc/admin_service.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/grpc_listener.h"
#include "server/grpc/health_service.h"
#include "server/http/http_listener.h"
#include "server/http/ops_handlers.h"
#include "server/http/status_handlers.h"
#include "server/metrics_exporter.h"
#include "server/notify.h"
#include "server/openai/openai_listener.h"
#include "server/resident_memory.h"
#include "server/vllm/vllm_service.h"

namespace quire::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
// See GrpcListener::KeepPolling.
constexpr absl::Duration kPollInterval = absl::Milliseconds(250);
// Of calls through the data port, for probes.
constexpr absl::Duration kCheckInterval = absl::Seconds(5);
// Beyond shutdown.force_timeout, for the step under way and for memory to be given back.
constexpr absl::Duration kLastSteps = absl::Seconds(10);
// For the last lines of a log that may be stuck.
constexpr absl::Duration kLogTime = absl::Seconds(1);

// Only root can make something else of it before.
bool MakeRunDir(const std::string& path) {
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return false;
  return access(path.c_str(), W_OK | X_OK) == 0;
}

// server.admin.listen, or the first place that works when no layer of the configuration sets it.
// `quire` looks at the same places. A folder that is there but not ours alone is an error: the
// user who made it may want our callers.
absl::StatusOr<std::vector<std::string>> AdminAddresses(const DaemonOptions& options) {
  if (!options.admin_listen_is_default) return options.admin_listen;
  if (MakeRunDir("/run/quire")) return options.admin_listen;
  std::vector<std::string> folders;
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr) folders.push_back(absl::StrCat(runtime_dir, "/quire"));
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  folders.push_back(absl::StrCat(error ? "/tmp" : temporary.string(), "/quire-", geteuid()));
  for (const std::string& folder : folders) {
    const absl::Status made = MakePrivateDir(folder);
    if (made.ok()) return std::vector<std::string>{absl::StrCat("unix:", folder, "/admin.sock")};
    if (!absl::IsUnavailable(made)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the folder of the admin socket, ", made.message()));
    }
  }
  log::Warn("server", "no place for the admin socket", {{"last_tried", folders.back()}});
  return std::vector<std::string>();
}

std::int32_t NumHttpConnections(const DaemonOptions& options) {
  return (options.http.listen.empty() ? 0 : options.http.max_connections) +
         (options.openai.enabled ? options.openai.max_connections : 0);
}

void WarnAboutOpenAddresses(const DaemonOptions& options) {
  const bool has_callers = options.auth.mode != AuthMode::kNone;
  std::vector<std::string> open;
  const auto look = [&](const std::string& text, bool has_tls) {
    ListenAddress address;
    if (has_tls && has_callers) return;
    if (ParseListenAddress(text, &address) && !address.is_loopback()) open.push_back(text);
  };
  for (const std::string& text : options.grpc_listen) look(text, options.tls.enabled());
  if (options.openai.enabled) look(options.openai.listen, options.tls.enabled());
  if (!open.empty()) {
    log::Warn("server", "every host that reaches these addresses may use the model or read along",
              {{"address", absl::StrJoin(open, ",")},
               {"tls", options.tls.enabled() ? "on" : "off: set tls.cert_file"},
               {"auth", has_callers ? "on" : "none: set auth.mode"}});
  }
  open.clear();
  // Probes and metrics are often asked in plain text.
  if (options.auth.mode != AuthMode::kToken) look(options.http.listen, /*has_tls=*/false);
  if (!open.empty()) {
    log::Warn("server", "every host that reaches this address may read metrics",
              {{"address", open[0]}, {"auth", "set auth.mode to token"}});
  }
}

}  // namespace

class Daemon::Impl {
 public:
  Impl(ConfigSources sources, std::unique_ptr<const LayeredConfig> config)
      : live_(std::move(sources), std::move(config), &registry_),
        options_(live_.start_options()),
        start_time_(MonotonicNow()),
        state_(options_.engine_stall_timeout),
        probe_(&registry_, ServedModelId(options_)),
        drain_(&state_, &clock_, options_.shutdown.drain_timeout, [this] { RequestStop(); }),
        context_{.state = &state_,
                 .probe = &probe_,
                 .clock = &clock_,
                 .config = &live_,
                 .peers = &peers_} {
    ExportProcess(&state_, start_time_, &registry_);
  }

  int Run();
  void RequestStop();
  void RequestReload();
  void Dump();

 private:
  void RunReloads();
  void Reload();
  absl::Status FollowConfig();
  absl::Status SetUpSecurity();
  void EndRevoked();
  std::vector<grpc::Service*> MakeDataServices();
  absl::Status Listen();
  HttpHandlers OpsHandlers();
  void LogListening() const;
  void Load();
  void OnFailing(const absl::Status& status);
  void OnFatal(const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLoading();
  const char* SilentPort() const;
  void Housekeep();
  void WaitForEnd();
  void WaitUntil(absl::Time deadline);
  void Drain();
  void StartShutdownTimer();
  void Close();
  void UpdateHealth();

  ForcedExitTimer forced_exit_timer_;  // first, so that it waits for all others
  probe::Registry registry_;
  LiveConfig live_;
  const DaemonOptions& options_;  // of the start
  const absl::Time start_time_;
  MachineClock clock_;
  ServingState state_;
  ServerProbe probe_;
  DrainControl drain_;
  Notifier notifier_{NotifyTargetFromEnvironment()};
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<CertificateStore> certificates_;  // null: plain text
  PeerTable peers_;
  HandlerContext context_;  // complete once Listen makes the services

  Mutex health_mutex_;
  std::unique_ptr<HealthService> health_ ABSL_GUARDED_BY(health_mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool loaded_ ABSL_GUARDED_BY(mutex_) = false;  // the loading thread is done, well or not
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_read_files_ ABSL_GUARDED_BY(mutex_) = false;  // tokens and certificates of the start
  bool reload_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_reloading_ ABSL_GUARDED_BY(mutex_) = false;
  int exit_code_ ABSL_GUARDED_BY(mutex_) = kExitOk;

  // Its engine's thread calls OnFailing and OnFatal until it is gone.
  std::unique_ptr<EngineStack> stack_;
  std::unique_ptr<GenerationService> generation_;
  std::unique_ptr<VllmService> vllm_;  // null: not enabled
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<GrpcListener> data_listener_, admin_listener_;
  std::unique_ptr<HttpListener> http_listener_;
  std::unique_ptr<OpenAiListener> openai_listener_;  // null: not enabled
};

int Daemon::Impl::Run() {
  WarnAboutOpenAddresses(options_);
  absl::Status listening = FollowConfig();
  if (listening.ok()) listening = SetUpSecurity();
  {
    MutexLock lock(&mutex_);
    has_read_files_ = true;
  }
  if (listening.ok()) listening = Listen();
  if (!listening.ok()) {
    log::Error("server", "cannot listen", {{"error", listening.message()}});
    return kExitConfig;
  }
  LogListening();
  notifier_.Status("loading the model");
  std::thread housekeeper([this] { Housekeep(); });
  std::thread loader([this] { Load(); });
  std::thread reloader([this] { RunReloads(); });
  WaitForEnd();
  // Loading can take minutes and holds nothing that outlives the process, so no thread waits for
  // it; nor for files that are read again.
  const bool is_loading = IsLoading();
  if (!is_loading) loader.join();
  Drain();
  StartShutdownTimer();
  bool is_reloading = false;
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    is_reloading = is_reloading_;
    changed_.NotifyAll();
  }
  housekeeper.join();
  if (!is_reloading) reloader.join();
  Close();
  MutexLock lock(&mutex_);
  log::Info("server", "ended", {{"exit_code", exit_code_}, {"while_loading", is_loading}});
  if (is_loading || is_reloading) {
    log::Flush(kLogTime);
    std::_Exit(exit_code_);
  }
  return exit_code_;
}

std::vector<grpc::Service*> Daemon::Impl::MakeDataServices() {
  generation_ = std::make_unique<GenerationService>(
      context_,
      ServerDescription{.version = kVersion,
                        .git_commit = kGitCommit,
                        .build_type = kBuildType,
                        .start_time = start_time_,
                        .max_receive_message_bytes = options_.transport.max_receive_message_bytes});
  if (!options_.vllm_service) return {generation_->service()};
  vllm_ = std::make_unique<VllmService>(
      context_, VllmDescription{.version = kVersion,
                                .start_time = start_time_,
                                .model_path = options_.model.path,
                                .has_own_files = options_.model.path != "embedded"});
  return {generation_->service(), vllm_->service()};
}

absl::Status Daemon::Impl::Listen() {
  const std::vector<grpc::Service*> data_services = MakeDataServices();
  admin_ = std::make_unique<AdminService>(context_, &drain_, &live_);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> admin_addresses, AdminAddresses(options_));
  GrpcTransportOptions transport = options_.transport;
  const GrpcConnectionLimit limit = LimitGrpcConnections(
      transport.max_connections, admin_addresses.empty() ? 1 : 2, NumHttpConnections(options_));
  transport.max_connections = limit.max_connections;
  transport.max_descriptors = limit.max_descriptors;
  QUIRE_ASSIGN_OR_RETURN(data_listener_, GrpcListener::Start({.addresses = options_.grpc_listen,
                                                              .transport = transport,
                                                              .certificates = certificates_.get(),
                                                              .peers = &peers_,
                                                              .probe = &probe_},
                                                             data_services));
  std::vector<GrpcListener*> listeners = {data_listener_.get()};
  if (!admin_addresses.empty()) {
    QUIRE_ASSIGN_OR_RETURN(admin_listener_,
                           GrpcListener::Start({.addresses = admin_addresses,
                                                .socket_mode = options_.admin_socket_mode,
                                                .transport = transport,
                                                .certificates = certificates_.get(),
                                                .peers = &peers_,
                                                .probe = &probe_},
                                               {admin_->service()}));
    listeners.push_back(admin_listener_.get());
  }
  {
    MutexLock lock(&health_mutex_);
    std::vector<std::string> ready_names = {"quire.v1.GenerationService"};
    if (vllm_ != nullptr) ready_names.push_back("vllm.grpc.engine.VllmEngine");
    health_ =
        std::make_unique<HealthService>(&state_, std::move(listeners), std::move(ready_names));
  }
  UpdateHealth();
  if (options_.openai.enabled) {
    QUIRE_ASSIGN_OR_RETURN(openai_listener_, OpenAiListener::Start(context_, certificates_.get()));
  }
  if (!options_.http.listen.empty()) {
    QUIRE_ASSIGN_OR_RETURN(
        http_listener_,
        HttpListener::Start(
            {.address = options_.http.listen,
             .num_threads = options_.http.threads,
             .max_connections = options_.http.max_connections,
             .max_connections_per_address = options_.http.max_connections_per_address},
            OpsHandlers(), options_.http.tls ? certificates_.get() : nullptr));
    ListenAddress address;
    QUIRE_CHECK(ParseListenAddress(http_listener_->address(), &address));
    if (openai_listener_ != nullptr) openai_listener_->AllowStatusPage(address.port);
  }
  return absl::OkStatus();
}

HttpHandlers Daemon::Impl::OpsHandlers() {
  ListenAddress address;
  const bool is_loopback =
      ParseListenAddress(options_.http.listen, &address) && address.is_loopback();
  // Client certificates guard the other listeners; this one does not ask for them.
  const bool has_tokens = options_.auth.mode == AuthMode::kToken;
  const bool checks_host = is_loopback && !has_tokens;
  HttpHandlers handlers = MakeOpsHandlers(&state_, options_.metrics_enabled ? &registry_ : nullptr,
                                          authenticator_.get(), checks_host);
  AddStatusHandlers(
      {.state = &state_,
       .authenticator = authenticator_.get(),
       .version = kVersion,
       .start_time = start_time_,
       .is_open = is_loopback || has_tokens,
       .checks_host = checks_host,
       .openai_address = openai_listener_ == nullptr ? "" : openai_listener_->address(),
       .openai_has_tls = openai_listener_ != nullptr && certificates_ != nullptr},
      &handlers);
  return handlers;
}

void Daemon::Impl::LogListening() const {
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

// On the engine's thread, before anybody has an answer.
void Daemon::Impl::OnFailing(const absl::Status& status) {
  log::Error("server", "the engine cannot go on", {{"error", status.message()}});
  state_.SetState(LifeState::kFailed);
  UpdateHealth();
  notifier_.Status("the engine has failed");
}

// On the engine's thread, once everybody has.
void Daemon::Impl::OnFatal(const absl::Status& status) {
  MutexLock lock(&mutex_);
  Fail(status);
}

// A defect, a device that is lost or cannot be opened, or a configuration that cannot be served.
void Daemon::Impl::Fail(const absl::Status& status) {
  exit_code_ = kExitConfig;
  if (absl::IsInternal(status)) exit_code_ = kExitEngine;
  if (runtime::IsDeviceError(status)) exit_code_ = kExitDevice;
  stop_ = true;
  changed_.NotifyAll();
}

void Daemon::Impl::Load() {
  SetThreadName("loader");
  DaemonOptions options = options_;
  options.engine.on_failing = [this](const absl::Status& status) { OnFailing(status); };
  options.engine.on_fatal = [this](const absl::Status& status) { OnFatal(status); };
  absl::StatusOr<std::unique_ptr<EngineStack>> stack =
      EngineStack::Build(options, &clock_, &registry_);
  if (stack.ok()) {
    const absl::Status followed = (*stack)->Follow(&live_);
    if (!followed.ok()) stack = followed;
  }
  {
    // Asked to stop meanwhile: the drain is over or does not know of this model, so no caller
    // gets to see it.
    MutexLock lock(&mutex_);
    if (stop_) {
      loaded_ = true;
      if (stack.ok()) stack_ = *std::move(stack);
      changed_.NotifyAll();
      return;
    }
  }
  if (stack.ok()) {
    stack_ = *std::move(stack);
    ExportModel(*stack_, &registry_);
    const ServedModel& served = stack_->served();
    state_.Publish(&served);
    state_.SetState(LifeState::kReady);
    UpdateHealth();
    log::Info("server", "ready",
              {{"model", served.id()},
               {"architecture", served.description.architecture},
               {"parameters", served.description.parameter_count},
               {"max_context_tokens", served.description.max_context_tokens},
               {"kv_pages", served.description.kv_page_count},
               {"kv_page_size", served.description.kv_page_size},
               {"kv_dtype", served.description.kv_dtype},
               {"determinism", options_.device.determinism},
               {"since_start", clock_.Now() - start_time_}});
    notifier_.Ready(absl::StrCat("serving ", served.id()));
  } else {
    log::Error("server", "cannot load the model",
               {{"path", options_.model.path}, {"error", stack.status().message()}});
    state_.SetState(LifeState::kFailed);
    UpdateHealth();
  }
  MutexLock lock(&mutex_);
  if (!stack.ok()) Fail(stack.status());
  loaded_ = true;
  changed_.NotifyAll();
}

// The name of a port for calls that does not answer, or null.
const char* Daemon::Impl::SilentPort() const {
  if (!data_listener_->is_reachable()) return "gRPC";
  if (openai_listener_ != nullptr && !openai_listener_->is_reachable()) return "OpenAI";
  return nullptr;
}

// Until the process closes: health, drains that run out of time, a stopped engine.
void Daemon::Impl::Housekeep() {
  SetThreadName("housekeeper");
  absl::Time next_poll = absl::InfinitePast(), next_check = absl::InfinitePast();
  FreeMemory free_memory;
  for (;;) {
    if (clock_.Now() >= next_check) {
      data_listener_->CheckReachable();
      if (openai_listener_ != nullptr) openai_listener_->CheckReachable();
      next_check = clock_.Now() + kCheckInterval;
    }
    state_.SetSilentPort(SilentPort());
    UpdateHealth();
    free_memory.Tick(clock_.Now());
    drain_.Tick();
    if (state_.is_live()) notifier_.KeepAlive(clock_.Now());
    if (clock_.Now() >= next_poll) {
      data_listener_->KeepPolling();
      if (admin_listener_ != nullptr) admin_listener_->KeepPolling();
      next_poll = clock_.Now() + kPollInterval;
    }
    MutexLock lock(&mutex_);
    if (closing_) return;
    changed_.WaitUntil(&mutex_, clock_.Now() + kTick);
    if (closing_) return;
  }
}

void Daemon::Impl::WaitForEnd() {
  MutexLock lock(&mutex_);
  while (!stop_) changed_.Wait(&mutex_);
}

bool Daemon::Impl::IsLoading() {
  MutexLock lock(&mutex_);
  return !loaded_;
}

void Daemon::Impl::WaitUntil(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (clock_.Now() < deadline) changed_.WaitUntil(&mutex_, deadline);
}

void Daemon::Impl::Drain() {
  // A drain that ends the process has a time of its own.
  const bool was_exiting = state_.exiting();
  state_.SetLeaving(true);
  state_.SetExiting();
  UpdateHealth();
  notifier_.Stopping();
  if (state_.state() == LifeState::kReady) {
    const absl::Duration delay = live_.options()->shutdown.pre_drain_delay;
    log::Info("server", "not ready any more, still admitting", {{"for", delay}});
    WaitUntil(clock_.Now() + delay);
    const absl::Status begun = drain_.Begin(drain_.default_timeout(), /*exit_after=*/false);
    if (!begun.ok()) log::Error("server", "cannot drain", {{"error", begun.message()}});
  } else if (state_.state() == LifeState::kDraining && !was_exiting) {
    drain_.Hasten(drain_.default_timeout());
  }
  if (state_.state() == LifeState::kDraining && !drain_.WaitDrained()) {
    log::Warn("server", "some requests did not end in time");
  }
}

// What must end now ends when its step does; a step that hangs is not waited for.
void Daemon::Impl::StartShutdownTimer() {
  MutexLock lock(&mutex_);
  forced_exit_timer_.Arm(clock_.Now() + live_.options()->shutdown.force_timeout + kLastSteps,
                         exit_code_ == kExitOk ? kExitEngine : exit_code_);
}

// The housekeeper has ended: no other thread uses the listeners any more.
void Daemon::Impl::Close() {
  const absl::Time deadline = clock_.Now() + live_.options()->shutdown.force_timeout;
  data_listener_->Shutdown(deadline);
  if (admin_listener_ != nullptr) admin_listener_->Shutdown(deadline);
  if (openai_listener_ != nullptr) openai_listener_->Shutdown(deadline);
  http_listener_.reset();
}

void Daemon::Impl::UpdateHealth() {
  MutexLock lock(&health_mutex_);
  if (health_ != nullptr) health_->Update();
}

void Daemon::Impl::RequestStop() {
  MutexLock lock(&mutex_);
  // Main's thread may wait for a file; no caller has been let in yet.
  if (!has_read_files_) std::_Exit(kExitOk);
  stop_ = true;
  changed_.NotifyAll();
}

// The parts of the daemon itself; the model follows when it is loaded.
absl::Status Daemon::Impl::FollowConfig() {
  QUIRE_RETURN_IF_ERROR(live_.Subscribe(
      "logging", [](const DaemonOptions& next) { return log::PrepareConfigure(next.logging); }));
  QUIRE_RETURN_IF_ERROR(live_.Subscribe(
      "tenants", [](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
        return [tenants = next.engine.tenants] { WarnAboutTenants(tenants); };
      }));
  return live_.Subscribe("health and shutdown",
                         [this](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
                           return [this, stall = next.engine_stall_timeout,
                                   drain = next.shutdown.drain_timeout] {
                             state_.SetStallTimeout(stall);
                             drain_.SetDefaultTimeout(drain);
                           };
                         });
}

// Before anybody can call. Later the files are read again by every reload, certificates by their
// own clock too.
absl::Status Daemon::Impl::SetUpSecurity() {
  QUIRE_ASSIGN_OR_RETURN(authenticator_, Authenticator::Create(options_.auth));
  context_.authenticator = authenticator_.get();
  QUIRE_RETURN_IF_ERROR(live_.Subscribe(
      "auth",
      [this](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
        QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const AuthRules> rules,
                               Authenticator::Read(next.auth));
        return [this, rules = std::move(rules)] {
          authenticator_->Apply(rules);
          EndRevoked();
        };
      },
      [](const DaemonOptions& next) { return Authenticator::Files(next.auth); }));
  if (!options_.tls.enabled()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(certificates_, CertificateStore::Create(options_.tls));
  return live_.Subscribe(
      "tls",
      [this](const DaemonOptions&) -> absl::StatusOr<LiveConfig::Apply> {
        QUIRE_ASSIGN_OR_RETURN(Certificates read, certificates_->Read());
        return [this, read = std::move(read)] { certificates_->Publish(read); };
      },
      [](const DaemonOptions& next) { return CertificateFiles(next.tls); });
}

// Requests whose caller has lost the right to them; see Generation::Start for those that come now.
void Daemon::Impl::EndRevoked() {
  const ServedModel* served = state_.model();
  if (served == nullptr) return;
  for (const engine::RequestInfo& request : served->engine->ListRequests()) {
    if (authenticator_->StillHolds(request.principal, Scope::kGenerate)) continue;
    served->engine->Cancel(request.caller(), request.id, engine::CancelSource::kRevoked);
  }
}

void Daemon::Impl::RequestReload() {
  MutexLock lock(&mutex_);
  reload_wanted_ = true;
  changed_.NotifyAll();
}

// Not on the thread of the signals: a file may let a reload wait for seconds, and SIGTERM must be
// heard meanwhile.
void Daemon::Impl::RunReloads() {
  SetThreadName("reloader");
  for (;;) {
    {
      MutexLock lock(&mutex_);
      is_reloading_ = false;
      while (!reload_wanted_ && !closing_) changed_.Wait(&mutex_);
      if (closing_) return;
      reload_wanted_ = false;
      is_reloading_ = true;
    }
    Reload();
  }
}

void Daemon::Impl::Reload() {
  // Between the two the supervisor's own reload lasts. While the model loads, "ready" would be a
  // lie.
  const bool is_up = state_.state() == LifeState::kReady && !state_.leaving();
  if (is_up) notifier_.Reloading();
  // A reload that takes effect opens the log too, under its new name.
  if (!live_.Reload(/*dry_run=*/false).ok()) {
    const absl::Status status = log::Reopen();
    if (!status.ok()) log::Error("server", "cannot reopen the log", {{"error", status.message()}});
  }
  if (is_up) notifier_.Ready(absl::StrCat("serving ", state_.model()->id()));
}

void Daemon::Impl::Dump() {
  log::Info("dump", "state",
            {{"state", LifeStateName(state_.state())}, {"leaving", state_.leaving()}});
  const ServedModel* served = state_.model();
  if (served == nullptr) return;
  const engine::EngineStats stats = served->engine->GetStats();
  log::Info("dump", "engine",
            {{"running", stats.running},
             {"waiting", stats.waiting},
             {"steps", stats.steps},
             {"preemptions", stats.preemptions},
             {"used_pages", stats.cache.used_pages},
             {"cached_pages", stats.cache.cached_pages},
             {"free_pages", stats.cache.free_pages},
             {"last_step_age", stats.last_step_age}});
  for (const engine::RequestInfo& request : served->engine->ListRequests()) {
    log::Info("dump", "request",
              {{"request_id", request.id},
               {"state", engine::RequestStateName(request.state)},
               {"age", clock_.Now() - request.accept_time},
               {"prompt_tokens", request.prompt_tokens},
               {"output_tokens", request.output_tokens},
               {"kv_pages", request.kv_pages}});
  }
}

Daemon::Daemon(ConfigSources sources, std::unique_ptr<const LayeredConfig> config)
    : impl_(std::make_unique<Impl>(std::move(sources), std::move(config))) {}
Daemon::~Daemon() = default;
int Daemon::Run() {
  return impl_->Run();
}
void Daemon::RequestStop() {
  impl_->RequestStop();
}
void Daemon::Dump() {
  impl_->Dump();
}

void Daemon::RequestReload() {
  impl_->RequestReload();
}

}  // namespace quire::server
