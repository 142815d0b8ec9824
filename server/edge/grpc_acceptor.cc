#include "server/edge/grpc_acceptor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "server/config/validator.h"
#include "server/net/peer_address.h"
#include "server/net/tcp_listening.h"
#include "server/net/unix_listening.h"

namespace quire::server {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using Local = net::local::stream_protocol;
using Generic = net::generic::stream_protocol;
using Error = boost::system::error_code;

constexpr int kThreads = 2;
constexpr std::chrono::seconds kTick{1};
// Maximum number of connections that one call of GrpcAcceptor::Tick ticks. Other work of the strand
// can run between calls.
constexpr std::size_t kTickBatchSize = 64;
// Maximum number of closed connections that are skipped before other work can run.
constexpr int kMaxSkipped = 256;
// Pause after a failed accept, for example if no descriptor is free.
constexpr std::chrono::milliseconds kAcceptPause{100};

std::string AddressOf(const tcp::endpoint& endpoint) {
  return endpoint.address().is_v6()
             ? absl::StrCat("ipv6:[", endpoint.address().to_string(), "]:", endpoint.port())
             : absl::StrCat("ipv4:", endpoint.address().to_string(), ":", endpoint.port());
}

tcp::endpoint ToTcp(const Generic::endpoint& endpoint) {
  tcp::endpoint result;
  QUIRE_CHECK(endpoint.size() <= result.capacity());
  std::memcpy(result.data(), endpoint.data(), endpoint.size());
  result.resize(endpoint.size());
  return result;
}

// Returns true if the client has closed or half-closed the connection. poll does not distinguish
// these cases. gRPC clients never half-close a TCP connection.
bool HasClosed(StreamSocket& socket) {
  pollfd closed = {.fd = socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&closed, 1, /*timeout=*/0) == 1;
}

}  // namespace

GrpcAcceptor::GrpcAcceptor(GrpcAcceptorOptions options)
    : options_(std::move(options)),
      nonce_(absl::StrCat("quire-", absl::Hex(std::random_device()()),
                          absl::Hex(std::random_device()()), "-")),
      num_open_(options_.registry->AddGauge("quire_grpc_connections_active",
                                            "Open connections of the gRPC listeners.")),
      connections_(options_.max_connections, options_.max_connections_per_address),
      io_(kThreads),
      descriptor_blocks_(&io_),
      tls_(options_.certificates == nullptr
               ? nullptr
               : std::make_unique<TlsContext>(options_.certificates,
                                              /*may_require_client_certificate=*/true,
                                              TlsProtocol::kHttp2)),
      work_(net::make_work_guard(io_)),
      strand_(net::make_strand(io_)),
      tick_(strand_) {
  host_.connect = [this](std::uint64_t number, const net::any_io_executor& executor,
                         const Peer& peer) { return Connect(number, executor, peer); };
  host_.add_unfinished_bytes = [this](std::int64_t bytes) {
    if (unfinished_bytes_.fetch_add(bytes) + bytes > options_.max_unfinished_bytes) CloseLargest();
  };
  host_.count_closed = [this](const Peer& peer, CloseCause cause, absl::string_view why) {
    CountClosed(peer, cause, why);
  };
  host_.set_phase = [this](std::uint64_t number, Phase phase) {
    connections_.SetPhase(number, phase);
  };
  host_.try_linger = [this](std::uint64_t number) { return connections_.TryLinger(number); };
  host_.remove = [this](std::uint64_t number, const std::string& name) { Remove(number, name); };
}

absl::StatusOr<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::Bind(GrpcAcceptorOptions options) {
  std::unique_ptr<GrpcAcceptor> acceptor(new GrpcAcceptor(std::move(options)));
  QUIRE_RETURN_IF_ERROR(acceptor->BindAll());
  return acceptor;
}

absl::Status GrpcAcceptor::BindAll() {
  for (const std::string& text : options_.addresses) {
    ListenAddress address;
    if (!ParseListenAddress(text, &address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("address ", text, " is not host:port or unix:PATH"));
    }
    if (address.is_unix) {
      QUIRE_ASSIGN_OR_RETURN(Local::acceptor acceptor,
                             ListenOnUnix(text, address.path, options_.socket_mode, strand_));
      listening_.push_back({std::move(acceptor), net::steady_timer(strand_)});
      socket_paths_.push_back(address.path);
      addresses_.push_back(text);
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(TcpListening tcp, ListenOnTcp(text, options_.reuse_port, strand_));
    for (tcp::acceptor& acceptor : tcp.acceptors) {
      listening_.push_back({std::move(acceptor), net::steady_timer(strand_)});
    }
    addresses_.push_back(std::move(tcp.address));
  }
  for (Listening& listening : listening_) listening.acceptor.non_blocking(true);
  return absl::OkStatus();
}

void GrpcAcceptor::Start(std::function<void(int)> hand_over) {
  hand_over_ = std::move(hand_over);
  net::post(strand_, [this] {
    for (Listening& listening : listening_) Accept(&listening);
    Tick(/*first=*/0);
  });
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Serve(); });
  }
}

// Runs the handlers. No exception is expected, because TlsContext and Transport catch the
// exceptions of Asio.
void GrpcAcceptor::Serve() {
  SetThreadName("grpc-edge");
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      log::Error("grpc", "exception while accepting or relaying connections",
                 {{"error", error.what()}});
    }
  }
}

void GrpcAcceptor::Accept(Listening* listening) {
  listening->acceptor.async_accept(
      net::any_io_executor(net::make_strand(io_)),
      [this, listening](Error error, StreamSocket socket) {
        if (is_closing_) return;
        // During a connection flood, clients have already closed most connections in the kernel's
        // accept queue. The closed connections are skipped at once, so that live connections behind
        // them do not wait.
        for (int i = 0; i < kMaxSkipped && !error && HasClosed(socket); ++i) {
          socket = StreamSocket(net::make_strand(io_));
          listening->acceptor.accept(socket, error);
        }
        if (!error) OnAccepted(std::move(socket));
        if (!error || error == net::error::would_block) return Accept(listening);
        const bool has_evicted = connections_.EvictOne(/*network=*/"");
        log::Warn("grpc", "connection not accepted",
                  {{"error", error.message()}, {"evicted_another", has_evicted}});
        listening->pause.expires_after(kAcceptPause);
        listening->pause.async_wait([this, listening](Error stopped) {
          if (!stopped && !is_closing_) Accept(listening);
        });
      });
}

void GrpcAcceptor::OnAccepted(StreamSocket socket) {
  Error error;
  const Generic::endpoint remote = socket.remote_endpoint(error);
  if (error) return;  // the client has closed already
  const bool is_from_self = self_connector_.RemoveIfOwn(remote);
  const bool is_unix = remote.protocol().family() == AF_UNIX;
  Peer peer = {.address = "unix:", .is_local_socket = is_unix};
  std::string network;
  if (!is_unix) {
    socket.set_option(tcp::no_delay(true), error);
    const tcp::endpoint address = ToTcp(remote);
    peer.address = AddressOf(address);
    network = PeerAddressOf(address.address()).network;
  }
  const bool has_tls = tls_ != nullptr && !is_unix && !is_from_self;
  const absl::Status room = is_from_self ? absl::OkStatus() : connections_.MakeRoom(network);
  // No reason can be sent to a client that expects a TLS handshake.
  if (!room.ok() && has_tls) return CountClosed(peer, CloseCause::kTooMany, room.message());
  const auto context = has_tls ? tls_->Current() : nullptr;
  if (has_tls && context == nullptr) return;
  const std::uint64_t number = next_number_++;
  const auto connection = std::make_shared<GuardedConnection>(
      &host_, number,
      has_tls ? NewTlsTransport(std::move(socket), context) : NewPlainTransport(std::move(socket)),
      std::move(peer), options_.frames, options_.times);
  descriptor_blocks_.Add();
  num_open_.Add(1);
  connections_.Add(connection,
                   room.ok() && !is_from_self ? std::optional(std::move(network)) : std::nullopt);
  room.ok() ? connection->Begin() : connection->Reject(CloseCause::kTooMany, room);
  if (is_closing_) connection->Abort();  // StopAccepting may not have seen this connection
}

// Ticks all connections once a second, kTickBatchSize at a time.
void GrpcAcceptor::Tick(std::uint64_t first) {
  if (!work_.owns_work()) return;
  const absl::Time now = MonotonicNow();
  const auto connections = connections_.List(first, kTickBatchSize);
  for (const auto& connection : connections) connection->Tick(now);
  if (connections.size() == kTickBatchSize) {
    return net::post(strand_, [this, next = connections.back()->number() + 1] { Tick(next); });
  }
  tick_.expires_after(kTick);
  tick_.async_wait([this](Error stopped) {
    if (!stopped) Tick(/*first=*/0);
  });
}

void GrpcAcceptor::CloseLargest() {
  std::shared_ptr<GuardedConnection> largest;
  for (auto& connection : connections_.List()) {
    if (largest == nullptr || connection->unfinished_bytes() > largest->unfinished_bytes()) {
      largest = std::move(connection);
    }
  }
  if (largest == nullptr) return;
  largest->CloseWithReason(
      CloseCause::kMemory,
      absl::ResourceExhaustedError(
          absl::StrCat("incomplete messages take more than ", options_.max_unfinished_bytes,
                       " bytes, which is half of server.grpc.memory_bytes, and those of this "
                       "connection take the most")));
}

// Connects a client to gRPC through a socket pair. Our end of the pair is bound to a name, which
// gRPC reports to the handlers of calls as their peer. Other processes cannot connect to that name,
// because the socket does not listen.
absl::StatusOr<GuardedConnectionHost::SocketToGrpc> GrpcAcceptor::Connect(
    std::uint64_t number, const net::any_io_executor& executor, const Peer& peer) {
  if (is_closing_) return absl::UnavailableError("the process is exiting");
  const std::string name = absl::StrCat(nonce_, number);
  std::string grpc_name = absl::StrCat("unix-abstract:", name);
  Local::socket ours(executor), theirs(executor);
  Error error;
  net::local::connect_pair(ours, theirs, error);
  if (!error) ours.bind(Local::endpoint(std::string(1, '\0') + name), error);
  if (!error) theirs.native_non_blocking(true, error);
  if (error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a socket pair for the connection: ", error.message(),
                     "; retry later, or raise the daemon's limit of open files"));
  }
  options_.peers->Add(grpc_name, peer);
  hand_over_(theirs.release());
  descriptor_blocks_.Add();
  return GuardedConnectionHost::SocketToGrpc{std::move(ours), std::move(grpc_name)};
}

void GrpcAcceptor::CountClosed(const Peer& peer, CloseCause cause, absl::string_view why) {
  options_.registry
      ->AddCounter("quire_grpc_connections_closed_total",
                   "gRPC connections that the daemon closed or refused.",
                   {{"cause", std::string(CloseCauseName(cause))}})
      .Increment();
  if (cause == CloseCause::kIdle) return;  // not the client's fault
  log::Info("grpc", "connection ended",
            {{"peer", peer.address}, {"cause", CloseCauseName(cause)}, {"why", why}});
}

void GrpcAcceptor::Remove(std::uint64_t number, const std::string& name) {
  descriptor_blocks_.Remove();
  if (!name.empty()) {
    options_.peers->Remove(name);
    descriptor_blocks_.Remove();
  }
  num_open_.Add(-1);
  connections_.Remove(number);
}

absl::StatusOr<int> GrpcAcceptor::ConnectToSelf() {
  Error error;
  const Generic::endpoint listening = listening_.front().acceptor.local_endpoint(error);
  if (error) return absl::UnavailableError(error.message());
  return self_connector_.Connect(listening);
}

void GrpcAcceptor::StopAccepting() {
  if (is_closing_.exchange(true)) return;
  for (const std::string& path : socket_paths_) unlink(path.c_str());
  net::post(strand_, [this] {
    Error ignored;
    for (Listening& listening : listening_) {
      listening.acceptor.close(ignored);
      listening.pause.cancel();
    }
  });
  for (const auto& connection : connections_.List()) connection->CloseIfOpening();
}

void GrpcAcceptor::WaitClosed(absl::Time deadline) {
  connections_.WaitUntilEmpty(deadline);
}

GrpcAcceptor::~GrpcAcceptor() {
  StopAccepting();
  for (const auto& connection : connections_.List()) connection->Abort();
  if (!threads_.empty()) WaitClosed(absl::InfiniteFuture());
  net::post(strand_, [this] {
    work_.reset();
    tick_.cancel();
  });
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace quire::server
