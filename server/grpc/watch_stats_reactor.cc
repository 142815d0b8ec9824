#include "server/grpc/watch_stats_reactor.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "quire/v1/admin.pb.h"
#include "server/api/response_translator.h"
#include "server/grpc/call_util.h"
#include "server/grpc/error_details.h"

namespace quire::server {
namespace {

constexpr absl::Duration kMinInterval = absl::Milliseconds(100);
// The timer fires at least this often to check whether the caller has gone or the process ends.
constexpr absl::Duration kMaxSleep = absl::Milliseconds(250);

absl::StatusOr<absl::Duration> ReadInterval(const v1::WatchStatsRequest& request) {
  if (!request.has_interval()) return absl::Seconds(1);
  QUIRE_ASSIGN_OR_RETURN(const absl::Duration interval,
                         ToDuration(request.interval(), "interval", /*zero_allowed=*/true));
  if (interval < kMinInterval) {
    return BadParameter("interval", absl::FormatDuration(interval), "at least 100ms");
  }
  return interval;
}

class WatchStatsReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit WatchStatsReactor(const HandlerContext& context) : context_(context) {}

  void Begin(const grpc::CallbackServerContext& call, const grpc::ByteBuffer& bytes) {
    absl::StatusOr<Identity> caller = Authorize(context_, call, "WatchStats", Scope::kAdmin);
    if (!caller.ok()) return End(caller.status());
    principal_ = std::move(caller->principal);
    v1::WatchStatsRequest request;
    const absl::Status parsed = ParseMessage(bytes, &request);
    if (!parsed.ok()) return End(parsed);
    const absl::StatusOr<absl::Duration> interval = ReadInterval(request);
    if (!interval.ok()) return End(interval.status());
    interval_ = *interval;
    Send();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) cancelled_ = true;
    Sleep();
  }
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override {
    context_.probe->CountRpc("WatchStats", code_);
    delete this;
  }

 private:
  void Send() {
    const absl::StatusOr<const ServedModel*> served = context_.state->ModelOrError();
    if (!served.ok()) return End(served.status());
    v1::WatchStatsResponse response;
    FillStats(*context_.state, **served, *context_.clock, response.mutable_stats());
    response_ = SerializeMessage(response);
    next_ = MonotonicNow() + interval_;
    StartWrite(&response_);
  }

  // Writes and timers alternate. Each starts the next one, so no two run concurrently.
  void Sleep() {
    if (cancelled_) return End(absl::CancelledError("the client cancelled the call"));
    if (context_.state->exiting()) {
      return End(
          WithReason(absl::UnavailableError("the process is exiting"), Reason::kServerShutdown));
    }
    if (!context_.authenticator->IsStillAllowed(principal_, Scope::kAdmin))
      return End(RevokedError());
    const absl::Time now = MonotonicNow();
    if (now >= next_) return Send();
    alarm_.Set(ToGrpcTime(std::min(next_, now + kMaxSleep)), [this](bool) { Sleep(); });
  }

  void End(const absl::Status& status) {
    const grpc::Status answer = ToGrpcStatus(status);
    code_ = static_cast<absl::StatusCode>(answer.error_code());
    Finish(answer);
  }

  const HandlerContext context_;
  absl::StatusCode code_ = absl::StatusCode::kOk;
  std::string principal_;
  absl::Duration interval_;
  absl::Time next_;
  grpc::ByteBuffer response_;
  grpc::Alarm alarm_;
  std::atomic<bool> cancelled_{false};
};

}  // namespace

void FillStats(const ServingState& state, const ServedModel& served, const Clock& clock,
               v1::Stats* stats) {
  ToProto(served.engine->GetStats(), clock, stats);
  stats->set_state(ToProto(state.state()));
  (*stats->mutable_memory_bytes())["weights"] = served.description.weight_bytes;
  (*stats->mutable_memory_bytes())["kv"] = served.description.pool_bytes;
  (*stats->mutable_memory_bytes())["workspace"] = served.description.workspace_bytes;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWatchStats(const HandlerContext& context,
                                                            const grpc::CallbackServerContext& call,
                                                            const grpc::ByteBuffer& request) {
  auto* reactor = new WatchStatsReactor(context);
  reactor->Begin(call, request);
  return reactor;
}

}  // namespace quire::server
