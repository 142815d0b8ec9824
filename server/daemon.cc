#include "server/daemon.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "runtime/compute_device.h"
#include "server/api/drain_control.h"
#include "server/api/generation.h"
#include "server/api/serving_state.h"
#include "server/auth/authenticator.h"
#include "server/auth/certificate_store.h"
#include "server/build_info.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "server/config/validator.h"
#include "server/config/warnings.h"
#include "server/engine_stack.h"
#include "server/forced_exit_timer.h"
#include "server/listeners.h"
#include "server/metrics_exporter.h"
#include "server/notify.h"
#include "server/reload_thread.h"
#include "server/resident_memory.h"

namespace quire::server {
namespace {

constexpr absl::Duration kHousekeepingInterval = absl::Milliseconds(100);
// Time beyond shutdown.force_timeout, for the current step and for freeing memory.
constexpr absl::Duration kShutdownMargin = absl::Seconds(10);
// Time limit for flushing the log at exit, because the flush may hang.
constexpr absl::Duration kLogFlushTimeout = absl::Seconds(1);

void WarnAboutUnprotectedAddresses(const DaemonOptions& options) {
  const bool has_auth = options.auth.mode != AuthMode::kNone;
  std::vector<std::string> open;
  const auto check = [&](const std::string& text, bool has_tls) {
    ListenAddress address;
    if (has_tls && has_auth) return;
    if (ParseListenAddress(text, &address) && !address.is_loopback()) open.push_back(text);
  };
  for (const std::string& text : options.grpc_listen) check(text, options.tls.enabled());
  if (options.openai.enabled) check(options.openai.listen, options.tls.enabled());
  if (!open.empty()) {
    log::Warn("server",
              "hosts that can reach these addresses can use the model or read its traffic",
              {{"address", absl::StrJoin(open, ",")},
               {"tls", options.tls.enabled() ? "on" : "off: set tls.cert_file"},
               {"auth", has_auth ? "on" : "none: set auth.mode"}});
  }
  open.clear();
  // For the metrics listener only auth.mode matters, because probes and scrapers often use no TLS.
  if (options.auth.mode != AuthMode::kToken) check(options.http.listen, /*has_tls=*/false);
  if (!open.empty()) {
    log::Warn("server", "hosts that can reach this address can read the metrics",
              {{"address", open[0]}, {"auth", "set auth.mode to token"}});
  }
}

}  // namespace

int ExitCodeOf(const absl::Status& status) {
  if (runtime::IsDeviceError(status)) return kExitDevice;
  return absl::IsInternal(status) ? kExitEngine : kExitConfig;
}

class Daemon::Impl {
 public:
  Impl(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
       runtime::CpuCheck cpu_check)
      : cpu_check_(std::move(cpu_check)),
        live_(std::move(sources), std::move(config), &registry_),
        start_time_(MonotonicNow()),
        state_(options().engine_stall_timeout),
        drain_(&state_, &clock_, options().shutdown.drain_timeout,
               [this] { RequestStop(/*skips_delay=*/false); }),
        listeners_(options(), start_time_, &state_, &registry_),
        context_{.state = &state_,
                 .probe = listeners_.probe(),
                 .clock = &clock_,
                 .config = &live_,
                 .peers = listeners_.peers()} {
    ExportProcess(&state_, start_time_, &registry_);
  }

  int Run();
  void RequestStop(bool skips_delay);
  void RequestReload() { reloader_.Request(); }
  void Dump();

 private:
  const DaemonOptions& options() const { return live_.start_options(); }
  void Reload();
  absl::Status FollowConfig();
  absl::Status SetUpSecurity();
  void CancelRevokedRequests();
  void Load();
  void OnFailing(const absl::Status& status);
  void OnFatal(const absl::Status& status);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Housekeep();
  void Drain();
  void StartShutdownTimer();

  ForcedExitTimer forced_exit_timer_;  // first member, so it is destroyed last
  const runtime::CpuCheck cpu_check_;
  probe::Registry registry_;
  LiveConfig live_;
  const absl::Time start_time_;
  MachineClock clock_;
  ServingState state_;
  DrainControl drain_;
  Notifier notifier_{NotifyTargetFromEnvironment()};
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<CertificateStore> certificates_;  // null without TLS
  std::unique_ptr<TraceExporter> traces_;           // null without tracing.otlp_endpoint
  Listeners listeners_;
  HandlerContext context_;  // complete before the listeners start

  Mutex mutex_;
  CondVar state_changed_;
  // Set when a stop was requested or a failure has occurred.
  std::optional<int> exit_code_ ABSL_GUARDED_BY(mutex_);
  bool skips_delay_ ABSL_GUARDED_BY(mutex_) = false;  // skip shutdown.pre_drain_delay
  // The loading thread has finished, with or without success.
  bool loader_finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  // Run has read the files of tokens and certificates.
  bool has_read_files_ ABSL_GUARDED_BY(mutex_) = false;
  ReloadThread reloader_{[this] { Reload(); }};

  // The engine thread calls OnFailing and OnFatal until the stack is destroyed.
  std::unique_ptr<EngineStack> stack_;
};

int Daemon::Impl::Run() {
  WarnAboutUnprotectedAddresses(options());
  absl::Status started = FollowConfig();
  if (started.ok()) started = SetUpSecurity();
  {
    MutexLock lock(&mutex_);
    has_read_files_ = true;
  }
  if (!options().tracing.endpoint.empty()) {
    TracingOptions tracing = options().tracing;
    tracing.version = kVersion;
    traces_ = std::make_unique<TraceExporter>(tracing, &registry_);
    context_.traces = traces_.get();
  }
  if (started.ok()) started = listeners_.Start(context_, &drain_, &live_, certificates_.get());
  if (!started.ok()) {
    log::Error("server", "cannot start", {{"error", started.message()}});
    return kExitConfig;
  }
  listeners_.LogAddresses();
  notifier_.Status("loading the model");
  std::thread housekeeper([this] { Housekeep(); });
  std::thread loader([this] { Load(); });
  reloader_.Start();
  bool is_loading = false;
  {
    MutexLock lock(&mutex_);
    while (!exit_code_) state_changed_.Wait(&mutex_);
    is_loading = !loader_finished_;
  }
  // Loading can take minutes, and the loaded model would be discarded. Therefore shutdown waits
  // neither for the loader nor for a reload.
  if (!is_loading) loader.join();
  Drain();
  StartShutdownTimer();
  {
    MutexLock lock(&mutex_);
    is_closing_ = true;
    state_changed_.NotifyAll();
  }
  const bool is_reloading = !reloader_.Stop();
  housekeeper.join();
  listeners_.Close(clock_.Now() + live_.options()->shutdown.force_timeout);
  MutexLock lock(&mutex_);
  log::Info("server", "ended", {{"exit_code", *exit_code_}, {"while_loading", is_loading}});
  if (is_loading || is_reloading) {
    log::Flush(kLogFlushTimeout);
    std::_Exit(*exit_code_);
  }
  return *exit_code_;
}

// Called on the engine thread when the engine fails, before its requests are answered.
void Daemon::Impl::OnFailing(const absl::Status& status) {
  log::Error("server", "the engine has failed", {{"error", status.message()}});
  state_.SetState(LifeState::kFailed);
  listeners_.UpdateHealth();
  notifier_.Status("the engine has failed");
}

// Called on the engine thread after all requests were answered.
void Daemon::Impl::OnFatal(const absl::Status& status) {
  MutexLock lock(&mutex_);
  Fail(status);
}

void Daemon::Impl::Fail(const absl::Status& status) {
  exit_code_ = ExitCodeOf(status);
  state_changed_.NotifyAll();
}

void Daemon::Impl::Load() {
  SetThreadName("loader");
  DaemonOptions load_options = options();
  load_options.engine.on_failing = [this](const absl::Status& status) { OnFailing(status); };
  load_options.engine.on_fatal = [this](const absl::Status& status) { OnFatal(status); };
  absl::StatusOr<std::unique_ptr<EngineStack>> stack =
      EngineStack::Build(load_options, cpu_check_, &clock_, &registry_);
  if (stack.ok()) {
    const absl::Status followed = (*stack)->Follow(&live_);
    if (!followed.ok()) stack = followed;
  }
  {
    // If a stop was requested while the model loaded, the drain does not wait for this model.
    // Therefore the model is not published.
    MutexLock lock(&mutex_);
    if (exit_code_) {
      loader_finished_ = true;
      if (stack.ok()) stack_ = *std::move(stack);
      state_changed_.NotifyAll();
      return;
    }
  }
  if (stack.ok()) {
    stack_ = *std::move(stack);
    ExportModel(*stack_, &registry_);
    const ServedModel& served = stack_->served();
    state_.Publish(&served);
    state_.SetState(LifeState::kReady);
    listeners_.UpdateHealth();
    log::Info("server", "ready",
              {{"url", listeners_.OpenAiUrl()},
               {"model", served.id()},
               {"architecture", served.description.architecture},
               {"parameters", served.description.parameter_count},
               {"max_context_tokens", served.description.max_context_tokens},
               {"kv_pages", served.description.kv_page_count},
               {"kv_page_size", served.description.kv_page_size},
               {"kv_dtype", served.description.kv_dtype},
               {"determinism", options().device.determinism},
               {"since_start", clock_.Now() - start_time_}});
    notifier_.Ready(absl::StrCat("serving ", served.id()));
  } else {
    log::Error("server", "cannot load the model",
               {{"path", options().model.path}, {"error", stack.status().message()}});
    state_.SetState(LifeState::kFailed);
    listeners_.UpdateHealth();
  }
  MutexLock lock(&mutex_);
  if (!stack.ok()) Fail(stack.status());
  loader_finished_ = true;
  state_changed_.NotifyAll();
}

// Runs until shutdown has drained the requests. Updates health, ends drains at their deadline, and
// tells the supervisor that the engine is alive.
void Daemon::Impl::Housekeep() {
  SetThreadName("housekeeper");
  MemoryTrimmer memory_trimmer;
  for (;;) {
    listeners_.Tick(clock_.Now());
    state_.SetUnresponsiveListener(listeners_.FindUnresponsive());
    listeners_.UpdateHealth();
    memory_trimmer.Tick(clock_.Now());
    drain_.Tick();
    if (state_.is_live()) notifier_.KeepAlive(clock_.Now());
    MutexLock lock(&mutex_);
    if (is_closing_) return;
    state_changed_.WaitUntil(&mutex_, clock_.Now() + kHousekeepingInterval);
    if (is_closing_) return;
  }
}

void Daemon::Impl::Drain() {
  notifier_.Stopping();
  bool skips_delay = false;
  {
    MutexLock lock(&mutex_);
    skips_delay = skips_delay_;
  }
  const absl::Duration delay =
      skips_delay ? absl::ZeroDuration() : live_.options()->shutdown.pre_drain_delay;
  // A drain with exit_after that has already begun keeps its delay and timeout. SIGINT only ends
  // the delay.
  const bool was_exiting = state_.exiting();
  state_.SetExiting();
  if (state_.state() == LifeState::kReady && !was_exiting) {
    const absl::Status begun = drain_.Begin(delay, drain_.default_timeout(), /*exit_after=*/false);
    if (!begun.ok()) log::Error("server", "cannot drain", {{"error", begun.message()}});
  } else if (state_.state() == LifeState::kDraining && !was_exiting) {
    drain_.ShortenDeadline(drain_.default_timeout());
  }
  {
    // SIGINT may have arrived since the delay was chosen.
    MutexLock lock(&mutex_);
    skips_delay = skips_delay_;
  }
  if (skips_delay) drain_.SkipDelay();
  state_.SetDrainStarted(true);
  listeners_.UpdateHealth();
  const LifeState state = state_.state();
  const bool has_requests = state == LifeState::kReady || state == LifeState::kDraining;
  if (has_requests && !drain_.WaitDrained()) {
    log::Warn("server", "requests are still live after the drain timeout");
  }
}

// Limits the duration of the rest of the shutdown, because a step may hang.
void Daemon::Impl::StartShutdownTimer() {
  MutexLock lock(&mutex_);
  forced_exit_timer_.Arm(clock_.Now() + live_.options()->shutdown.force_timeout + kShutdownMargin,
                         *exit_code_ == kExitOk ? kExitEngine : *exit_code_);
}

void Daemon::Impl::RequestStop(bool skips_delay) {
  {
    MutexLock lock(&mutex_);
    skips_delay_ = skips_delay_ || skips_delay;
    // The main thread may hang while it reads a file. No listener is open yet, so exit at once.
    if (!has_read_files_) std::_Exit(kExitOk);
    if (!exit_code_) exit_code_ = kExitOk;
    state_changed_.NotifyAll();
  }
  // The main thread may already wait for the delay of a drain that exits the process.
  if (skips_delay) drain_.SkipDelay();
}

// Subscribes the daemon's own components to the configuration. EngineStack subscribes when the
// model is loaded.
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

// Reads the files of tokens and certificates. Called before any listener opens. Every reload reads
// these files again, and CertificateStore also reads the certificates again periodically.
absl::Status Daemon::Impl::SetUpSecurity() {
  QUIRE_ASSIGN_OR_RETURN(authenticator_, Authenticator::Create(options().auth));
  context_.authenticator = authenticator_.get();
  QUIRE_RETURN_IF_ERROR(live_.Subscribe(
      "auth",
      [this](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
        QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const AuthRules> rules,
                               Authenticator::Read(next.auth));
        return [this, rules = std::move(rules)] {
          authenticator_->Apply(rules);
          CancelRevokedRequests();
        };
      },
      [](const DaemonOptions& next) { return Authenticator::Files(next.auth); }));
  if (!options().tls.enabled()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(certificates_, CertificateStore::Create(options().tls));
  return live_.Subscribe(
      "tls",
      [this](const DaemonOptions&) -> absl::StatusOr<LiveConfig::Apply> {
        QUIRE_ASSIGN_OR_RETURN(Certificates read, certificates_->Read());
        return [this, read = std::move(read)] { certificates_->Publish(read); };
      },
      [](const DaemonOptions& next) { return CertificateFiles(next.tls); });
}

// Cancels the requests of principals whose permission was revoked. Generation::Start checks
// requests that arrive meanwhile.
void Daemon::Impl::CancelRevokedRequests() {
  const ServedModel* served = state_.model();
  if (served == nullptr) return;
  for (const engine::RequestInfo& request : served->engine->ListRequests()) {
    if (authenticator_->IsStillAllowed(request.principal, Scope::kGenerate)) continue;
    served->engine->Cancel(request.caller(), request.id, engine::CancelSource::kRevoked);
  }
}

void Daemon::Impl::Reload() {
  // The supervisor shows "reloading" until Ready is called, so a reload is only reported while the
  // server is ready.
  const bool is_up = state_.state() == LifeState::kReady && !state_.drain_started();
  if (is_up) notifier_.Reloading();
  // A successful reload has already reopened the log file, possibly under a new name.
  if (!live_.Reload(/*dry_run=*/false).ok()) {
    const absl::Status status = log::Reopen();
    if (!status.ok())
      log::Error("server", "cannot reopen the log file", {{"error", status.message()}});
  }
  if (is_up) notifier_.Ready(absl::StrCat("serving ", state_.model()->id()));
}

void Daemon::Impl::Dump() {
  log::Info("dump", "state",
            {{"state", LifeStateName(state_.state())}, {"drain_started", state_.drain_started()}});
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

Daemon::Daemon(ConfigSources sources, std::unique_ptr<const LayeredConfig> config,
               runtime::CpuCheck cpu_check)
    : impl_(std::make_unique<Impl>(std::move(sources), std::move(config), std::move(cpu_check))) {}
Daemon::~Daemon() = default;
int Daemon::Run() {
  return impl_->Run();
}
void Daemon::RequestStop(bool skips_delay) {
  impl_->RequestStop(skips_delay);
}
void Daemon::Dump() {
  impl_->Dump();
}

void Daemon::RequestReload() {
  impl_->RequestReload();
}

}  // namespace quire::server
