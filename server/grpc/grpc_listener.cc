#include "server/grpc/grpc_listener.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "server/config/validator.h"
#include "server/grpc/call_util.h"
#include "server/grpc/tls_credentials.h"

namespace quire::server {
namespace {

// From the connection to the client's HTTP/2 settings, TLS included. gRPC's default of two minutes
// lets connections that say nothing pile up.
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);
constexpr int kMaxIdlePings = 100;  // in a row, with no answer sent between them

int Milliseconds(absl::Duration duration) {
  return duration == absl::InfiniteDuration()
             ? std::numeric_limits<int>::max()
             : static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// True when a process accepts connections on the socket file.
bool SomebodyListens(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

absl::Status PrepareUnixSocket(const std::string& address, const std::string& path) {
  if (SomebodyListens(path)) {
    return absl::AlreadyExistsError(absl::StrCat("address ", address, " is in use"));
  }
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address, ": the file exists and is not a socket"));
  }
  if (unlink(path.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", address, ": the old socket cannot be removed: ", strerror(errno)));
  }
  return absl::OkStatus();
}

void ApplyTransport(const GrpcTransportOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_receive_message_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(options.max_send_message_bytes));
  const KeepaliveOptions& keepalive = options.keepalive;
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_ALLOW_REUSEPORT, options.reuse_port ? 1 : 0},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams},
      {GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.max_metadata_bytes)},
      {GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive.time)},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive.timeout)},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
       Milliseconds(keepalive.min_ping_interval)},
      // With 1 the library would also ping connections without calls, whose clients often read
      // nothing until their next call, and closing those fails that call ("Socket closed"). So
      // pings on them are accepted by counting more of them before they are too many.
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0},
      {GRPC_ARG_HTTP2_MAX_PING_STRIKES, keepalive.permit_without_calls ? kMaxIdlePings : 2},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(kHandshakeTimeout)},
      {GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age)},
      {GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(options.max_connection_age_grace)},
  };
  for (const auto& [name, value] : arguments) builder->AddChannelArgument(name, value);
}

// What gRPC has to say goes through our log; its levels are debug, info and error.
void LogGrpc(gpr_log_func_args* line) {
  const log::Level level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? log::Level::kWarn : log::Level::kDebug;
  log::Write(level, "grpc", "library", {{"text", line->message}});
}

// Protobuf complains about every message that does not parse; the client gets that answer anyway.
void LogProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& text) {
  log::Debug("protobuf", "library", {{"text", text}});
}

// Settings of the process, not of one server.
void InitLibraries(bool reflection) {
  static std::once_flag once;
  std::call_once(once, [reflection] {
    gpr_set_log_function(&LogGrpc);
    google::protobuf::SetLogHandler(&LogProtobuf);
    grpc::EnableDefaultHealthCheckService(true);
    if (reflection) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

// What BuildAndStart does not say: which address it could not bind.
absl::Status BindError(const std::vector<std::string>& addresses, const std::vector<int>& ports) {
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (ports[i] > 0) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("address ", addresses[i], " is in use or cannot be bound"));
  }
  return absl::AlreadyExistsError(
      absl::StrCat("address ", addresses.empty() ? "" : addresses[0], " is in use"));
}

}  // namespace

struct GrpcListener::State {
  std::vector<std::shared_ptr<grpc::ServerCredentials>> credentials;  // outlive the server
  std::unique_ptr<grpc::Server> server;
  std::vector<std::string> addresses;
  std::vector<std::string> socket_paths;
  std::unique_ptr<grpc::GenericStub> self;
};

GrpcListener::GrpcListener(std::unique_ptr<State> state) : state_(std::move(state)) {}

GrpcListener::~GrpcListener() {
  Shutdown(absl::InfinitePast());
  for (const std::string& path : state_->socket_paths) unlink(path.c_str());
}

absl::StatusOr<std::unique_ptr<GrpcListener>> GrpcListener::Start(
    const GrpcListenerOptions& options, const std::vector<grpc::Service*>& services) {
  InitLibraries(options.transport.reflection);
  auto state = std::make_unique<State>();
  grpc::ServerBuilder builder;
  ApplyTransport(options.transport, &builder);
  std::vector<int> ports(options.addresses.size(), 0);
  for (std::size_t i = 0; i < options.addresses.size(); ++i) {
    ListenAddress address;
    if (!ParseListenAddress(options.addresses[i], &address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("address ", options.addresses[i], " is not host:port or unix:PATH"));
    }
    if (address.is_unix) {
      QUIRE_RETURN_IF_ERROR(PrepareUnixSocket(options.addresses[i], address.path));
      state->socket_paths.push_back(address.path);
    }
    const bool is_plain = address.is_unix || options.certificates == nullptr;
    state->credentials.push_back(is_plain ? grpc::InsecureServerCredentials()
                                          : MakeTlsCredentials(options.certificates));
    builder.AddListeningPort(options.addresses[i], state->credentials.back(), &ports[i]);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  state->server = builder.BuildAndStart();
  if (state->server == nullptr) {
    state->socket_paths.clear();  // not ours
    return BindError(options.addresses, ports);
  }
  // The default health service begins with SERVING for "".
  state->server->GetHealthCheckService()->SetServingStatus(false);
  for (std::size_t i = 0; i < options.addresses.size(); ++i) {
    ListenAddress address;
    ParseListenAddress(options.addresses[i], &address);
    std::string bound = options.addresses[i];
    if (!address.is_unix && address.port == 0) {
      bound = absl::StrCat(bound.substr(0, bound.rfind(':') + 1), ports[i]);
    }
    if (address.is_unix && chmod(address.path.c_str(), options.socket_mode) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("address ", bound, ": the mode cannot be set: ", strerror(errno)));
    }
    state->addresses.push_back(std::move(bound));
  }
  state->self = std::make_unique<grpc::GenericStub>(state->server->InProcessChannel({}));
  return std::unique_ptr<GrpcListener>(new GrpcListener(std::move(state)));
}

const std::vector<std::string>& GrpcListener::addresses() const {
  return state_->addresses;
}

void GrpcListener::SetServing(const std::string& name, bool serving) {
  state_->server->GetHealthCheckService()->SetServingStatus(name, serving);
}

void GrpcListener::KeepPolling() {
  // A health check of "": its request is an empty message, and no code looks at the answer.
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
  };
  auto call = std::make_shared<Call>();
  const grpc::Slice empty("");
  call->request = grpc::ByteBuffer(&empty, 1);
  call->context.set_deadline(ToGrpcTime(MonotonicNow() + absl::Seconds(1)));
  state_->self->UnaryCall(&call->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                          &call->request, &call->response, [call](grpc::Status) {});
}

void GrpcListener::Shutdown(absl::Time deadline) {
  state_->self.reset();
  state_->server->Shutdown(ToGrpcTime(deadline));
  state_->server->Wait();
}

}  // namespace quire::server
