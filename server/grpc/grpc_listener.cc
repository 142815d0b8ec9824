#include "server/grpc/grpc_listener.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <limits>
#include <mutex>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "server/api/reachability.h"
#include "server/edge/grpc_acceptor.h"
#include "server/grpc/call_util.h"
#include "server/grpc/health_calls.h"

namespace quire::server {
namespace {

// Maximum time from accept to the client's HTTP/2 preface, including TLS. Also the maximum time
// from the preface to the client's SETTINGS. gRPC's default of two minutes lets silent connections
// pile up.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);
// Maximum time for one message to arrive. A message of 16 MiB then needs 280 KiB/s.
constexpr absl::Duration kMessageTimeout = absl::Seconds(60);
// Maximum duration of one write of at most 64 KiB to a client. This limit detects clients that
// vanished without closing. Slow readers are limited by gRPC's flow control and
// stream.slow_client_timeout.
constexpr absl::Duration kWriteStall = absl::Seconds(60);
// Time for clients to read the last bytes when gRPC shuts down.
constexpr absl::Duration kFlushTime = absl::Seconds(2);

// Returns the number of pings that a client may send while the server sends nothing.
int MaxIdlePings(const KeepaliveOptions& keepalive) {
  return keepalive.permit_without_calls ? 100 : 2;
}

int Milliseconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration()
             ? std::numeric_limits<int>::max()
             : static_cast<int>(absl::ToInt64Milliseconds(duration));
}

void ApplyTransport(const GrpcTransportOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_message_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(options.max_send_message_bytes));
  // Limits the memory of messages and headers. Above the limit, gRPC closes idle connections first,
  // then others.
  builder->SetResourceQuota(
      grpc::ResourceQuota("quire").Resize(static_cast<std::size_t>(options.memory_bytes)));
  // Compressed messages are refused before they are inflated: gRPC 1.51 would inflate the whole
  // message before it checks max_receive_message_bytes.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  const KeepaliveOptions& keepalive = options.keepalive;
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_ALLOW_REUSEPORT, options.reuse_port ? 1 : 0},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams},
      {GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.max_metadata_bytes)},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.time)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout)},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
       Milliseconds(keepalive.min_ping_interval)},
      // The value 1 would make gRPC ping connections without calls. Clients often read nothing
      // until their next call, so gRPC would close the connection and that call would fail ("Socket
      // closed"). The number of pings that clients may send without calls is set by
      // GRPC_ARG_HTTP2_MAX_PING_STRIKES.
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, MaxIdlePings(keepalive)},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshakeTimeout)},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age)},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(options.max_connection_age_grace)},
  };
  for (const auto& [name, value] : arguments) builder->AddChannelArgument(name, value);
}

// Returns the frame limits of one connection. A busy client makes hundreds of calls and a few
// thousand window updates per second. An attack makes a hundred times as many.
FrameLimits MakeFrameLimits(const GrpcTransportOptions& options) {
  return {.max_streams = options.max_concurrent_streams,
          // Above max_metadata_bytes gRPC fails only the call. Above this limit the connection is
          // closed.
          .max_header_block_bytes = 4 * options.max_metadata_bytes,
          // A client may cancel all its open calls at once.
          .max_resets = 1000 + std::int64_t{options.max_concurrent_streams},
          .max_control_frames = 1000,
          .max_window_updates = 50'000,
          .max_header_bytes = 16 << 20,
          .max_unfinished_bytes = 4 * options.max_receive_message_bytes,
          .message_timeout = kMessageTimeout};
}

GrpcAcceptorOptions MakeAcceptorOptions(const GrpcListenerOptions& options) {
  return {.addresses = options.addresses,
          .socket_mode = options.socket_mode,
          .reuse_port = options.transport.reuse_port,
          .max_connections = options.transport.max_connections,
          .max_connections_per_address = options.transport.max_connections_per_address,
          // Half of the memory is for incomplete messages. gRPC needs the other half to read and
          // write, and slows all connections down when little memory is left.
          .max_unfinished_bytes = options.transport.memory_bytes / 2,
          .frames = MakeFrameLimits(options.transport),
          .times = {.preface = kHandshakeTimeout, .write_stall = kWriteStall},
          .certificates = options.certificates,
          .peers = options.peers,
          .registry = options.registry};
}

// Writes gRPC's log lines to our log. gRPC's levels are debug, info and error.
void LogGrpc(gpr_log_func_args* line) {
  const log::Level level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? log::Level::kWarn : log::Level::kDebug;
  log::Write(level, "grpc", "library", {{"text", line->message}});
}

// Protobuf logs every message that does not parse. The client gets that error anyway.
void LogProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log::Debug("protobuf", "library", {{"text", text}});
}

// Applies settings of the process, which all servers share.
void InitLibraries(bool reflection) {
  static std::once_flag once;
  std::call_once(once, [reflection] {
    // Debian builds Abseil with deadlock detection, which acquires a global lock for each mutex
    // that gRPC locks.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    gpr_set_log_function(&LogGrpc);
    google::protobuf::SetLogHandler(&LogProtobuf);
    grpc::EnableDefaultHealthCheckService(true);
    if (reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

struct GrpcListener::State {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connection_acceptor;
  // Destroyed before connection_acceptor and server.
  std::unique_ptr<GrpcAcceptor> acceptor;
  std::shared_ptr<grpc::Channel> self;
  Reachability reachability;  // updated by CheckReachable
  HealthCalls calls;
};

GrpcListener::GrpcListener(std::unique_ptr<State> state) : state_(std::move(state)) {}

GrpcListener::~GrpcListener() {
  Shutdown(absl::InfinitePast());
}

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Start(
    const GrpcListenerOptions& options, const std::vector<grpc::Service*>& services) {
  InitLibraries(options.transport.reflection);
  auto state = std::make_unique<State>();
  QUIRE_ASSIGN_OR_RETURN(state->acceptor, GrpcAcceptor::Bind(MakeAcceptorOptions(options)));
  grpc::ServerBuilder builder;
  ApplyTransport(options.transport, &builder);
  state->connection_acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr) return absl::InternalError("gRPC failed to start a server");
  // The default health service begins with SERVING for "".
  state->server->GetHealthCheckService()->SetServingStatus(false);
  state->self = state->server->InProcessChannel({});
  state->acceptor->Start([connection_acceptor = state->connection_acceptor.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    connection_acceptor->HandleNewConnection(&connection);
  });
  return std::unique_ptr<GrpcListener>(new GrpcListener(std::move(state)));
}

const std::vector<std::string>& GrpcListener::addresses() const {
  return state_->acceptor->addresses();
}

void GrpcListener::SetServing(const std::string& name, bool serving) {
  state_->server->GetHealthCheckService()->SetServingStatus(name, serving);
}

void GrpcListener::KeepPolling() {
  // The answer is ignored.
  state_->calls.Begin(state_->self, absl::Seconds(1), [](const grpc::Status&) {});
}

void GrpcListener::CheckReachable() {
  const absl::StatusOr<int> fd = state_->acceptor->ConnectToSelf();
  if (!fd.ok()) return;
  state_->calls.Begin(grpc::CreateInsecureChannelFromFd("self", *fd), absl::Seconds(5),
                      [state = state_.get()](const grpc::Status& status) {
                        // gRPC returns these two codes itself if the server does not answer.
                        if (status.error_code() != grpc::StatusCode::UNAVAILABLE &&
                            status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
                          state->reachability.RecordAnswer();
                        }
                      });
}

bool GrpcListener::is_reachable() const {
  return state_->reachability.is_reachable();
}

void GrpcListener::Shutdown(absl::Time deadline) {
  if (state_->self == nullptr) return;
  state_->calls.End();
  state_->self.reset();
  state_->acceptor->StopAccepting();
  state_->server->Shutdown(ToGrpcTime(deadline));
  state_->server->Wait();
  state_->acceptor->WaitClosed(MonotonicNow() + kFlushTime);
}

}  // namespace quire::server
