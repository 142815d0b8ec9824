#include "server/grpc/admin_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status.h"
#include "quire/v1/admin.grpc.pb.h"
#include "server/api/call_worker.h"
#include "server/api/response_translator.h"
#include "server/grpc/call_util.h"
#include "server/grpc/unary_call.h"
#include "server/grpc/watch_stats_reactor.h"

namespace quire::server {
namespace {

using Base = v1::AdminService;
// Requests arrive as bytes, so that only requests of authorized callers are parsed (unary_call.h).
using RawService = Base::WithRawCallbackMethod_Drain<
    Base::WithRawCallbackMethod_Resume<Base::WithRawCallbackMethod_ReloadConfig<
        Base::WithRawCallbackMethod_GetConfig<Base::WithRawCallbackMethod_LoadAdapter<
            Base::WithRawCallbackMethod_UnloadAdapter<Base::WithRawCallbackMethod_FlushCache<
                Base::WithRawCallbackMethod_AbortRequests<Base::WithRawCallbackMethod_ListRequests<
                    Base::WithRawCallbackMethod_GetStats<Base::WithRawCallbackMethod_WatchStats<
                        Base::WithRawCallbackMethod_CheckIntegrity<
                            Base::WithRawCallbackMethod_SetLogLevel<Base::Service>>>>>>>>>>>>>;

constexpr int kNumWorkers = 4;  // Drain waits on a worker; calls beyond four are queued
constexpr std::size_t kMaxQueuedCalls = 64;
constexpr std::int32_t kDefaultPageSize = 50;
constexpr std::int32_t kMaxListedRequests = 1000;
constexpr std::size_t kMaxReasonBytes = 256;

// The token encodes the last request of a page, so requests that end between two calls do not shift
// later pages.
std::string PageToken(const engine::RequestInfo& last) {
  return absl::StrCat(absl::ToUnixNanos(last.accept_time), "/", last.id, "/", last.tenant);
}

// Returns true if `info` follows the request that a page token encodes. Ids contain no slash. Two
// tenants may use the same id.
bool IsAfter(const engine::RequestInfo& info, std::int64_t nanos, absl::string_view id_and_tenant) {
  const std::int64_t accepted = absl::ToUnixNanos(info.accept_time);
  return accepted > nanos ||
         (accepted == nanos && absl::StrCat(info.id, "/", info.tenant) > id_and_tenant);
}

absl::Status ListRequests(engine::Engine* engine, const Clock& clock,
                          const v1::ListRequestsRequest& request,
                          v1::ListRequestsResponse* response) {
  if (request.page_size() < 0) {
    return BadParameter("page_size", absl::StrCat(request.page_size()),
                        absl::StrCat("at least 0; values above ", kMaxListedRequests, " count as ",
                                     kMaxListedRequests));
  }
  std::int64_t nanos = 0;
  const std::string& token = request.page_token();
  const std::size_t slash = token.find('/');
  if (!token.empty() &&
      (slash == token.npos || !absl::SimpleAtoi(token.substr(0, slash), &nanos))) {
    return BadParameter("page_token", token, "empty or the next_page_token of a response");
  }
  const std::string last = token.empty() ? "" : token.substr(slash + 1);
  const std::int32_t requested = request.page_size() == 0 ? kDefaultPageSize : request.page_size();
  const std::int32_t page_size = std::min(requested, kMaxListedRequests);
  std::vector<engine::RequestInfo> all = engine->ListRequests();
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.accept_time, absl::StrCat(a.id, "/", a.tenant)) <
           std::tuple(b.accept_time, absl::StrCat(b.id, "/", b.tenant));
  });
  const engine::RequestInfo* shown = nullptr;
  for (const engine::RequestInfo& info : all) {
    if (!token.empty() && !IsAfter(info, nanos, last)) continue;
    v1::RequestInfo message;
    ToProto(info, clock, &message);
    if (request.state() != v1::REQUEST_STATE_UNSPECIFIED && request.state() != message.state()) {
      continue;
    }
    if (response->requests_size() == page_size) {
      response->set_next_page_token(PageToken(*shown));
      break;
    }
    *response->add_requests() = std::move(message);
    shown = &info;
  }
  return absl::OkStatus();
}

absl::Status AbortRequests(engine::Engine* engine, const v1::AbortRequestsRequest& request,
                           v1::AbortRequestsResponse* response) {
  if (request.reason().size() > kMaxReasonBytes) {
    return BadParameter("reason", absl::StrCat(request.reason().size(), " bytes long"),
                        absl::StrCat("at most ", kMaxReasonBytes, " bytes"));
  }
  engine::AbortSelection selection;
  selection.ids.assign(request.request_ids().begin(), request.request_ids().end());
  selection.all = request.all();
  selection.tenant = request.tenant();
  selection.reason_text = request.reason();
  if (request.has_older_than()) {
    QUIRE_ASSIGN_OR_RETURN(selection.older_than, ToDuration(request.older_than(), "older_than",
                                                            /*zero_allowed=*/true));
  }
  QUIRE_ASSIGN_OR_RETURN(const engine::AbortResult result, engine->Abort(selection));
  response->set_aborted_count(result.aborted);
  for (const std::string& id : result.unknown_ids) response->add_unknown_ids(id);
  return absl::OkStatus();
}

void WriteChanges(const std::vector<ConfigChange>& changes,
                  google::protobuf::RepeatedPtrField<v1::FieldChange>* messages) {
  for (const ConfigChange& change : changes) {
    v1::FieldChange* message = messages->Add();
    message->set_path(change.path);
    message->set_old_value(change.old_value);
    message->set_new_value(change.new_value);
    message->set_location(change.location);
  }
}

void WriteReload(const ReloadResult& result, v1::ReloadConfigResponse* response) {
  WriteChanges(result.changed, response->mutable_changed());
  WriteChanges(result.rejected, response->mutable_rejected());
  for (const std::string& error : result.errors) response->add_errors(error);
  response->set_config_sha256(result.config_sha256);
}

absl::Status FlushCache(engine::Engine* engine, const v1::FlushCacheRequest& request,
                        v1::FlushCacheResponse* response) {
  if (!request.tenant().empty()) return FeatureUnsupported("flushing one tenant", "tenant");
  if (request.include_tiers()) return FeatureUnsupported("cache tiers", "include_tiers");
  absl::Duration idle_timeout = absl::ZeroDuration();
  if (request.has_idle_timeout()) {
    QUIRE_ASSIGN_OR_RETURN(idle_timeout, ToDuration(request.idle_timeout(), "idle_timeout",
                                                    /*zero_allowed=*/true));
  }
  QUIRE_ASSIGN_OR_RETURN(const cache::FlushCounts counts, engine->FlushCache(idle_timeout));
  response->set_freed_page_count(static_cast<std::int32_t>(counts.freed_pages));
  response->set_retained_page_count(static_cast<std::int32_t>(counts.retained_pages));
  return absl::OkStatus();
}

absl::Status CheckIntegrity(engine::Engine* engine, v1::CheckIntegrityResponse* response) {
  QUIRE_ASSIGN_OR_RETURN(const engine::IntegrityReport report, engine->InspectIntegrity());
  for (const std::string& failure : report.failures) response->add_failures(failure);
  response->set_check_count(report.num_checks);
  ToProto(report.pause, response->mutable_pause());
  return absl::OkStatus();
}

class AdminService final : public RawService {
 public:
  AdminService(const HandlerContext& context, DrainControl* drain, LiveConfig* config)
      : context_(context), drain_(drain), config_(config), worker_(kNumWorkers, kMaxQueuedCalls) {
    // A reload replaces the levels that SetLogLevel set, so their pending reverts are cancelled.
    const absl::Status status = config_->Subscribe(
        "log levels", [this](const DaemonOptions&) -> absl::StatusOr<LiveConfig::Apply> {
          return [this] {
            MutexLock lock(&mutex_);
            reverts_.clear();
          };
        });
    QUIRE_CHECK(status.ok());
  }

  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerUnaryReactor;
  using Bytes = grpc::ByteBuffer;

  Reactor* Drain(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::DrainRequest, v1::DrainResponse>(
        Unary("Drain", call, request, response), &worker_,
        [this](const Identity&, const auto& in, auto* out) { return RunDrain(in, out); });
  }

  Reactor* Resume(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::ResumeRequest, v1::ResumeResponse>(
        Unary("Resume", call, request, response), [this](const Identity&, const auto&, auto* out) {
          const absl::Status status = drain_->Resume();
          out->set_state(ToProto(context_.state->state()));
          return status;
        });
  }

  Reactor* GetConfig(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::GetConfigRequest, v1::GetConfigResponse>(
        Unary("GetConfig", call, request, response),
        [this](const Identity&, const auto& in, auto* out) {
          FillConfig(in, out);
          return absl::OkStatus();
        });
  }

  Reactor* ReloadConfig(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::ReloadConfigRequest, v1::ReloadConfigResponse>(
        Unary("ReloadConfig", call, request, response), &worker_,
        [this](const Identity&, const auto& in, auto* out) {
          WriteReload(config_->Reload(in.dry_run()), out);
          return absl::OkStatus();
        });
  }

  Reactor* FlushCache(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::FlushCacheRequest, v1::FlushCacheResponse>(
        Unary("FlushCache", call, request, response), &worker_,
        [this](const Identity&, const auto& in, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::FlushCache(served->engine, in, out);
        });
  }

  Reactor* CheckIntegrity(Context* call, const Bytes* request, Bytes* response) override {
    return AnswerOnWorker<v1::CheckIntegrityRequest, v1::CheckIntegrityResponse>(
        Unary("CheckIntegrity", call, request, response), &worker_,
        [this](const Identity&, const auto&, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::CheckIntegrity(served->engine, out);
        });
  }

  Reactor* AbortRequests(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::AbortRequestsRequest, v1::AbortRequestsResponse>(
        Unary("AbortRequests", call, request, response),
        [this](const Identity&, const auto& in, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::AbortRequests(served->engine, in, out);
        });
  }

  Reactor* ListRequests(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::ListRequestsRequest, v1::ListRequestsResponse>(
        Unary("ListRequests", call, request, response),
        [this](const Identity&, const auto& in, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          return server::ListRequests(served->engine, *context_.clock, in, out);
        });
  }

  Reactor* GetStats(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::GetStatsRequest, v1::GetStatsResponse>(
        Unary("GetStats", call, request, response),
        [this](const Identity&, const auto&, auto* out) -> absl::Status {
          QUIRE_ASSIGN_OR_RETURN(const ServedModel* served, context_.state->ModelOrError());
          FillStats(*context_.state, *served, *context_.clock, out->mutable_stats());
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<Bytes>* WatchStats(Context* call, const Bytes* request) override {
    return StartWatchStats(context_, *call, *request);
  }

  Reactor* SetLogLevel(Context* call, const Bytes* request, Bytes* response) override {
    return Answer<v1::SetLogLevelRequest, v1::SetLogLevelResponse>(
        Unary("SetLogLevel", call, request, response),
        [this](const Identity&, const auto& in, auto* out) { return ChangeLogLevel(in, out); });
  }

  // These methods are declared in the API but not implemented.
  Reactor* LoadAdapter(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(Unary("LoadAdapter", call, request, response), "LoadAdapter");
  }
  Reactor* UnloadAdapter(Context* call, const Bytes* request, Bytes* response) override {
    return RefuseUnsupported(Unary("UnloadAdapter", call, request, response), "UnloadAdapter");
  }

 private:
  UnaryCall Unary(absl::string_view method, Context* call, const Bytes* request, Bytes* response) {
    return {context_, call, request, response, method, Scope::kAdmin};
  }

  void FillConfig(const v1::GetConfigRequest& request, v1::GetConfigResponse* response) {
    const std::shared_ptr<const LayeredConfig> config = config_->config();
    response->set_yaml(config->Print(Spelling::kYaml, request.include_defaults()));
    for (const auto& [path, origin] : config->origins()) {
      if (!request.include_defaults() && origin.is_default()) continue;
      (*response->mutable_origins())[path] = origin.ToString();
    }
    response->set_config_sha256(config->Sha256());
    ToProto(config->load_time(), response->mutable_load_time());
  }

  absl::Status RunDrain(const v1::DrainRequest& request, v1::DrainResponse* response) {
    absl::Duration timeout = drain_->default_timeout();
    if (request.has_timeout()) {
      QUIRE_ASSIGN_OR_RETURN(timeout,
                             ToDuration(request.timeout(), "timeout", /*zero_allowed=*/true));
    }
    absl::Duration delay = config_->options()->shutdown.pre_drain_delay;
    if (request.has_pre_drain_delay()) {
      QUIRE_ASSIGN_OR_RETURN(delay, ToDuration(request.pre_drain_delay(), "pre_drain_delay",
                                               /*zero_allowed=*/true));
    }
    QUIRE_RETURN_IF_ERROR(drain_->Begin(delay, timeout, request.exit_after()));
    if (request.wait()) drain_->WaitDrained();
    const engine::EngineStats stats = context_.state->model()->engine->GetStats();
    response->set_running_count(stats.running);
    response->set_waiting_count(stats.waiting);
    response->set_drained(context_.state->state() == LifeState::kDraining &&
                          context_.state->model()->engine->WaitIdle(absl::InfinitePast()));
    return absl::OkStatus();
  }

  absl::Status ChangeLogLevel(const v1::SetLogLevelRequest& request,
                              v1::SetLogLevelResponse* response) {
    const std::optional<log::Level> level = log::LevelFromName(request.level());
    if (!level) {
      return BadParameter("level", absl::StrCat("\"", request.level(), "\""),
                          "trace, debug, info, warn, error or off");
    }
    absl::Duration revert_after = absl::InfiniteDuration();
    if (request.has_revert_after()) {
      QUIRE_ASSIGN_OR_RETURN(revert_after, ToDuration(request.revert_after(), "revert_after",
                                                      /*zero_allowed=*/false));
    }
    const std::string& logger = request.logger();
    const log::Level previous = log::SetLevel(logger, *level);
    response->set_previous_level(std::string(log::LevelName(previous)));
    MutexLock lock(&mutex_);
    reverts_.erase(logger);  // cancels the revert of an earlier change of this logger
    if (revert_after != absl::InfiniteDuration()) {
      // An alarm that is destroyed before it fires calls back with false.
      reverts_[logger].Set(ToGrpcTime(MonotonicNow() + revert_after),
                           [logger, previous](bool is_time) {
                             if (is_time) log::SetLevel(logger, previous);
                           });
    }
    return absl::OkStatus();
  }

  const HandlerContext context_;
  DrainControl* const drain_;
  LiveConfig* const config_;
  Mutex mutex_;
  std::map<std::string, grpc::Alarm> reverts_ ABSL_GUARDED_BY(mutex_);
  CallWorker worker_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const HandlerContext& context, DrainControl* drain,
                                                LiveConfig* config) {
  return std::make_unique<AdminService>(context, drain, config);
}

}  // namespace quire::server
