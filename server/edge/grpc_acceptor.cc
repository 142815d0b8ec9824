#include "server/edge/grpc_acceptor.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <list>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "server/config/validator.h"
#include "server/edge/silent_connections.h"
#include "server/edge/watched_descriptors.h"
#include "server/net/peer_address.h"
#include "server/net/tcp_listening.h"
#include "server/net/tls_context.h"

namespace quire::server {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using Local = net::local::stream_protocol;
using Error = boost::system::error_code;

constexpr int kThreads = 2;  // beside the one that accepts
constexpr std::chrono::seconds kTick{1};
// Connections that are looked at before what others do has its turn: to look at 8000 in a row kept
// a new connection waiting for up to 10 ms.
constexpr std::size_t kTickedAtOnce = 64;
constexpr int kDescriptorsToGrpc = 2;  // a socket pair
// After a failed accept, such as for want of descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};
// Clients that have spoken, and that the threads that serve have not taken over: with more, new
// ones are accepted with a pause behind each.
constexpr std::size_t kMaxWaiting = 8;
constexpr std::chrono::milliseconds kPauseOfMany{1};
// Refused connections that are being told so at once; more are closed without a word.
constexpr int kMaxTurnedAway = 64;
// Connections that have been told to end and have not yet: beyond, the oldest are not waited for,
// and so many are not when descriptors run out.
constexpr int kMaxLeaving = 16;
// For a call that was under way when its client was asked to go: it is served to its end. That is
// not waited for where there are no descriptors at all, nor for more clients than these: a flood of
// connections would take the descriptors that are kept for the rest of the process.
constexpr absl::Duration kTimeToLeave = absl::Seconds(1);
constexpr int kMaxWaitedFor = 32;
constexpr std::size_t kMaxOwn = 4;
constexpr absl::Duration kSelfConnectTimeout = absl::Seconds(1);

// True when a process accepts connections on the socket file.
bool AcceptsConnections(const std::string& path) {
  net::io_context io;
  Local::socket socket(io);
  Error error;
  socket.connect(Local::endpoint(path), error);
  return !error;
}

absl::Status PrepareUnixSocket(const std::string& address, const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("address ", address, ": the path has ",
                                                   path.size(), " bytes, at most ",
                                                   sizeof(sockaddr_un{}.sun_path) - 1));
  }
  if (AcceptsConnections(path)) {
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

std::string AddressOf(const tcp::endpoint& endpoint) {
  return endpoint.address().is_v6()
             ? absl::StrCat("ipv6:[", endpoint.address().to_string(), "]:", endpoint.port())
             : absl::StrCat("ipv4:", endpoint.address().to_string(), ":", endpoint.port());
}

// The connected socket, non-blocking; Asio itself would wait for as long as the system does.
template <typename Socket, typename Endpoint>
absl::StatusOr<int> ConnectWithin(Socket socket, const Endpoint& to, absl::Duration timeout) {
  Error error;
  socket.native_non_blocking(true, error);
  int problem = error ? error.value() : 0;
  if (problem == 0 &&
      connect(socket.native_handle(), to.data(), static_cast<socklen_t>(to.size())) != 0) {
    problem = errno;
  }
  if (problem == EINPROGRESS) {
    pollfd writable = {.fd = socket.native_handle(), .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof(problem);
    if (poll(&writable, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) != 1) {
      problem = ETIMEDOUT;
    } else if (getsockopt(socket.native_handle(), SOL_SOCKET, SO_ERROR, &problem, &size) != 0) {
      problem = errno;
    }
  }
  if (problem != 0) return absl::UnavailableError(strerror(problem));
  return socket.release();
}

}  // namespace

class GrpcAcceptor::Impl {
 public:
  explicit Impl(GrpcAcceptorOptions options);
  ~Impl();

  absl::Status Bind();
  void Start(std::function<void(int)> hand_over);
  void StopAccepting();
  void WaitClosed(absl::Time deadline);
  absl::StatusOr<int> ConnectToSelf();

  const std::vector<std::string>& addresses() const { return addresses_; }
  int num_connections() const {
    MutexLock lock(&mutex_);
    return static_cast<int>(connections_.size());
  }

 private:
  template <typename Protocol>
  struct Listening {
    typename Protocol::acceptor acceptor;
    net::steady_timer pause;
  };
  struct Known {
    bool is_turned_away = false;
    bool is_own = false;
    bool is_ending = false;  // by EndLeaving
    bool gives_way = false;
    int descriptors = 1;
    std::string ip = {};
    std::weak_ptr<GuardedConnection> connection = {};
  };

  absl::Status BindUnix(const std::string& text, const std::string& path);
  absl::Status BindTcp(const std::string& text);
  template <typename Protocol>
  void Accept(Listening<Protocol>* listening);
  bool IsOwn(const std::string& address);
  void AddOwn(const std::string& address);
  void OnAccepted(tcp::socket socket);
  void OnAccepted(Local::socket socket);
  void Take(Accepted accepted, bool is_own);
  enum class Kind { kPlaced, kOwn, kTurnedAway };
  void Enter(std::uint64_t number, const std::string& ip, Kind kind);
  bool Leave(std::uint64_t number);
  void WaitForWords(std::uint64_t number, Accepted accepted);
  void OnWords(std::uint64_t number, Accepted accepted);
  void ServeClient(std::uint64_t number, Accepted accepted);
  std::shared_ptr<GuardedConnection> Guard(std::uint64_t number, Accepted accepted);
  void GiveWay(std::uint64_t number);
  void EndLateSilent(absl::Time now);
  void StopListening();
  absl::Status MakeRoomFor(const std::string& ip);
  absl::Status MakeRoomToGrpc(std::uint64_t number);
  void EndLeavingBeyond(int num_spared, absl::Duration at_least);
  void EndLeaving(std::int64_t most_connections, std::int64_t most_descriptors,
                  absl::Duration at_least);
  bool CloseOne(const std::string& ip, bool for_call = false);
  void SetPhase(std::uint64_t number, Phase phase);
  absl::Duration Pace(std::uint64_t number, double num_calls);
  int NumTurnedAway() const {
    MutexLock lock(&mutex_);
    return num_turned_away_;
  }
  std::vector<std::shared_ptr<GuardedConnection>> Connections(
      std::uint64_t first = 0, std::size_t most = std::numeric_limits<std::size_t>::max()) const;
  void Tick(std::uint64_t first);
  void EndLargest();
  void Run(net::io_context* io, const char* name);
  absl::StatusOr<GuardedConnectionHost::ToGrpc> Connect(std::uint64_t number,
                                                        const net::any_io_executor& executor,
                                                        Peer peer);
  void CountClosed(const Peer& peer, CloseCause cause, absl::string_view why);
  void Left(std::uint64_t number, const std::string& name);

  const GrpcAcceptorOptions options_;
  const std::string nonce_;  // of the names of our ends of socket pairs
  GuardedConnectionHost host_;
  std::vector<std::string> addresses_;
  std::vector<std::string> socket_paths_;
  std::function<void(int)> hand_over_;
  std::atomic<bool> is_closing_{false};
  std::atomic<bool> is_ended_{false};
  std::uint64_t next_number_ = 0;  // of the thread that accepts
  std::atomic<std::uint64_t> next_name_{0};
  std::atomic<std::int64_t> unfinished_bytes_{0};

  mutable Mutex mutex_;
  CondVar left_;
  std::map<std::uint64_t, Known> connections_ ABSL_GUARDED_BY(mutex_);  // by number
  ConnectionPlaces places_ ABSL_GUARDED_BY(mutex_);  // of those but turned away ones and our own
  CallPace pace_ ABSL_GUARDED_BY(mutex_);
  int num_turned_away_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t num_ending_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of connections that are neither turned away nor ending.
  std::int64_t num_descriptors_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> own_ ABSL_GUARDED_BY(mutex_);  // of ConnectToSelf, not yet accepted

  using WorkGuard = net::executor_work_guard<net::io_context::executor_type>;
  net::io_context io_;                     // of connections that have spoken
  net::io_context door_;                   // of acceptors, silent connections and the timer
  WatchedDescriptors watched_;             // in io_, on both sides
  WatchedDescriptors watched_at_door_;     // silent ones
  const std::unique_ptr<TlsContext> tls_;  // null: plain text
  SilentConnections silent_;
  WorkGuard work_, door_work_;
  net::steady_timer tick_;
  std::list<Listening<tcp>> tcp_;
  std::list<Listening<Local>> unix_;
  std::vector<std::thread> threads_;
};

GrpcAcceptor::Impl::Impl(GrpcAcceptorOptions options)
    : options_(std::move(options)),
      nonce_(absl::StrCat("quire-", absl::Hex(std::random_device()()),
                          absl::Hex(std::random_device()()), "-")),
      io_(kThreads),
      door_(/*concurrency_hint=*/1),
      watched_(&io_),
      watched_at_door_(&door_),
      tls_(options_.certificates == nullptr
               ? nullptr
               : std::make_unique<TlsContext>(options_.certificates, /*may_require=*/true,
                                              TlsProtocol::kHttp2)),
      silent_(
          [this](std::uint64_t number, Accepted accepted) { OnWords(number, std::move(accepted)); },
          [this](std::uint64_t number) {
            watched_at_door_.Remove();
            Leave(number);
          }),
      work_(net::make_work_guard(io_)),
      door_work_(net::make_work_guard(door_)),
      tick_(door_) {
  host_.connect = [this](std::uint64_t number, const net::any_io_executor& executor, Peer peer) {
    return Connect(number, executor, std::move(peer));
  };
  host_.settings = SettingsFrame(options_.frames.max_streams, options_.max_metadata_bytes);
  host_.add_unfinished_bytes = [this](std::int64_t bytes) {
    if (unfinished_bytes_.fetch_add(bytes) + bytes > options_.max_unfinished_bytes) EndLargest();
  };
  host_.count_closed = [this](const Peer& peer, CloseCause cause, absl::string_view why) {
    CountClosed(peer, cause, why);
  };
  host_.set_phase = [this](std::uint64_t number, Phase phase) { SetPhase(number, phase); };
  host_.pace = [this](std::uint64_t number, double calls) { return Pace(number, calls); };
  host_.left = [this](std::uint64_t number, const std::string& name) { Left(number, name); };
}

absl::Status GrpcAcceptor::Impl::Bind() {
  for (const std::string& text : options_.addresses) {
    ListenAddress address;
    if (!ParseListenAddress(text, &address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("address ", text, " is not host:port or unix:PATH"));
    }
    QUIRE_RETURN_IF_ERROR(address.is_unix ? BindUnix(text, address.path) : BindTcp(text));
  }
  return absl::OkStatus();
}

// The mode is that of the descriptor before it has a name: at no time may others open the socket.
absl::Status GrpcAcceptor::Impl::BindUnix(const std::string& text, const std::string& path) {
  QUIRE_RETURN_IF_ERROR(PrepareUnixSocket(text, path));
  Listening<Local>& listening =
      unix_.emplace_back(Listening<Local>{Local::acceptor(door_), net::steady_timer(door_)});
  Error error;
  listening.acceptor.open(Local(), error);
  if (!error && fchmod(listening.acceptor.native_handle(), options_.socket_mode) != 0) {
    error = Error(errno, boost::system::system_category());
  }
  if (!error) listening.acceptor.bind(Local::endpoint(path), error);
  if (error) return BindError(text, error);
  socket_paths_.push_back(path);
  // What umask took away.
  if (chmod(path.c_str(), options_.socket_mode) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", text, ": the mode cannot be set: ", strerror(errno)));
  }
  listening.acceptor.listen(Local::acceptor::max_listen_connections, error);
  if (error) return BindError(text, error);
  addresses_.push_back(text);
  return absl::OkStatus();
}

absl::Status GrpcAcceptor::Impl::BindTcp(const std::string& text) {
  QUIRE_ASSIGN_OR_RETURN(TcpListening listening,
                         ListenOnTcp(text, options_.reuse_port, door_.get_executor()));
  for (tcp::acceptor& acceptor : listening.acceptors) {
    tcp_.push_back({std::move(acceptor), net::steady_timer(door_)});
  }
  addresses_.push_back(std::move(listening.address));
  return absl::OkStatus();
}

void GrpcAcceptor::Impl::Start(std::function<void(int)> hand_over) {
  hand_over_ = std::move(hand_over);
  net::post(door_, [this] {
    for (auto& listening : tcp_) Accept(&listening);
    for (auto& listening : unix_) Accept(&listening);
    Tick(/*first=*/0);
  });
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Run(&io_, "grpc-edge"); });
  }
  threads_.emplace_back([this] { Run(&door_, "grpc-accept"); });
}

// Asio may throw.
void GrpcAcceptor::Impl::Run(net::io_context* io, const char* name) {
  SetThreadName(name);
  for (;;) {
    try {
      io->run();
      return;
    } catch (const std::exception& error) {
      log::Error("grpc", "exception", {{"error", error.what()}});
    }
  }
}

template <typename Protocol>
void GrpcAcceptor::Impl::Accept(Listening<Protocol>* listening) {
  const auto on_accept = [this, listening](Error error, typename Protocol::socket socket) {
    if (is_closing_) return;
    if (!error) {
      OnAccepted(std::move(socket));
    } else {
      const bool has_made_room = CloseOne(/*ip=*/"");
      EndLeaving(/*most_connections=*/0, /*most_descriptors=*/0, absl::ZeroDuration());
      log::Warn("grpc", "connection not accepted",
                {{"error", error.message()}, {"closed_an_idle_one", has_made_room}});
    }
    if (!error && silent_.num_waiting() < kMaxWaiting) return Accept(listening);
    listening->pause.expires_after(error ? kAcceptPause : kPauseOfMany);
    listening->pause.async_wait([this, listening](Error stopped) {
      if (!stopped && !is_closing_) Accept(listening);
    });
  };
  listening->acceptor.async_accept(on_accept);
}

void GrpcAcceptor::Impl::OnAccepted(tcp::socket socket) {
  Error error;
  const tcp::endpoint remote = socket.remote_endpoint(error);
  if (error) return;  // gone already
  socket.set_option(tcp::no_delay(true), error);
  Peer peer{.address = AddressOf(remote)};
  const bool is_own = IsOwn(peer.address);
  Take({.socket = std::move(socket),
        .protocol = remote.protocol(),
        .peer = std::move(peer),
        .ip = PeerAddressOf(remote.address()).network,
        .speaks_tls = tls_ != nullptr && !is_own,
        .since = MonotonicNow()},
       is_own);
}

void GrpcAcceptor::Impl::OnAccepted(Local::socket socket) {
  Error error;
  const bool is_own = IsOwn(socket.remote_endpoint(error).path());
  Take({.socket = std::move(socket),
        .protocol = Local(),
        .peer = {.address = "unix:", .is_local_socket = true},
        .since = MonotonicNow()},
       is_own);
}

// One that is refused can be told so where no TLS is in the way.
void GrpcAcceptor::Impl::Take(Accepted accepted, bool is_own) {
  const std::uint64_t number = next_number_++;
  if (is_own) {
    Enter(number, accepted.ip, Kind::kOwn);
    const absl::Time since = accepted.since;
    if (const auto connection = Guard(number, std::move(accepted))) connection->Begin(since);
    return;
  }
  EndLeavingBeyond(kMaxLeaving, kTimeToLeave);
  EndLeavingBeyond(kMaxWaitedFor, absl::ZeroDuration());
  const absl::Status room = MakeRoomFor(accepted.ip);
  if (room.ok()) return WaitForWords(number, std::move(accepted));
  if (accepted.speaks_tls || NumTurnedAway() >= kMaxTurnedAway) {
    return CountClosed(accepted.peer, CloseCause::kTooMany, room.message());
  }
  Enter(number, accepted.ip, Kind::kTurnedAway);
  if (const auto connection = Guard(number, std::move(accepted))) {
    connection->TurnAway(CloseCause::kTooMany, room);
  }
}

// A connection has its place. It has one, too, where memory is missing for its order among others.
void GrpcAcceptor::Impl::Enter(std::uint64_t number, const std::string& ip, Kind kind) {
  const bool is_turned_away = kind == Kind::kTurnedAway;
  MutexLock lock(&mutex_);
  connections_.emplace(
      number, Known{.is_turned_away = is_turned_away, .is_own = kind == Kind::kOwn, .ip = ip});
  options_.probe->ConnectionOpened();
  num_turned_away_ += is_turned_away ? 1 : 0;
  num_descriptors_ += is_turned_away ? 0 : 1;
  if (kind == Kind::kPlaced) places_.Add(number, ip, MonotonicNow());
}

// False: it had none.
bool GrpcAcceptor::Impl::Leave(std::uint64_t number) {
  MutexLock lock(&mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return false;
  options_.probe->ConnectionClosed();
  num_turned_away_ -= found->second.is_turned_away ? 1 : 0;
  num_ending_ -= found->second.is_ending ? 1 : 0;
  if (!found->second.is_turned_away && !found->second.is_ending) {
    num_descriptors_ -= found->second.descriptors;
  }
  places_.Remove(number);
  connections_.erase(found);
  left_.NotifyAll();
  return true;
}

void GrpcAcceptor::Impl::WaitForWords(std::uint64_t number, Accepted accepted) {
  Enter(number, accepted.ip, Kind::kPlaced);
  silent_.Add(number, std::move(accepted));
  watched_at_door_.Add();
}

// What is ready on the threads that serve comes before the next one. They make what the connection
// holds, since memory of other threads would stay in pieces among theirs.
void GrpcAcceptor::Impl::OnWords(std::uint64_t number, Accepted accepted) {
  watched_at_door_.Remove();
  net::post(io_, [this, number, accepted = std::move(accepted)]() mutable {
    ServeClient(number, std::move(accepted));
    net::post(door_, [this] { silent_.GoOn(); });
  });
}

void GrpcAcceptor::Impl::ServeClient(std::uint64_t number, Accepted accepted) {
  const absl::Time since = accepted.since;
  if (const auto connection = Guard(number, std::move(accepted))) connection->Begin(since);
}

// The connection goes over to the threads that serve. Null: it could not, and is closed.
std::shared_ptr<GuardedConnection> GrpcAcceptor::Impl::Guard(std::uint64_t number,
                                                             Accepted accepted) {
  bool is_watched = false;
  absl::Cleanup undo = [&] {
    if (Leave(number) && is_watched) watched_.Remove();
  };
  const auto context = accepted.speaks_tls ? tls_->Current() : nullptr;
  if (accepted.speaks_tls && context == nullptr) return nullptr;
  Error error;
  StreamSocket socket(net::make_strand(io_));
  const int fd = accepted.socket.release(error);
  if (error) return nullptr;
  socket.assign(accepted.protocol, fd, error);
  if (error) {
    close(fd);
    return nullptr;
  }
  auto transport = context == nullptr ? NewPlainTransport(std::move(socket))
                                      : NewTlsTransport(std::move(socket), context);
  watched_.Add();
  is_watched = true;
  auto connection = std::make_shared<GuardedConnection>(&host_, number, std::move(transport),
                                                        std::move(accepted.peer), options_.frames,
                                                        options_.times);
  std::move(undo).Cancel();
  bool gives_way = false;
  {
    MutexLock lock(&mutex_);
    Known& known = connections_.at(number);
    known.connection = connection;
    gives_way = known.gives_way;
  }
  // It may have come too late for StopAccepting, or for GiveWay.
  if (is_closing_) connection->Abort();
  if (gives_way) connection->Yield();
  return connection;
}

bool GrpcAcceptor::Impl::IsOwn(const std::string& address) {
  MutexLock lock(&mutex_);
  return std::erase(own_, address) > 0;
}

// Before the acceptor can meet it. Where accepting stands still, the oldest are given up.
void GrpcAcceptor::Impl::AddOwn(const std::string& address) {
  MutexLock lock(&mutex_);
  if (own_.size() >= kMaxOwn) own_.erase(own_.begin());
  own_.push_back(address);
}

absl::StatusOr<int> GrpcAcceptor::Impl::ConnectToSelf() {
  ListenAddress address;
  QUIRE_CHECK(ParseListenAddress(addresses_.front(), &address));
  Error error;
  if (address.is_unix) {
    Local::socket socket(io_, Local());
    const std::string name = std::string(1, '\0') + nonce_ + absl::StrCat(next_name_.fetch_add(1));
    socket.bind(Local::endpoint(name), error);
    if (error) return absl::UnavailableError(error.message());
    AddOwn(name);
    return ConnectWithin(std::move(socket), Local::endpoint(address.path), kSelfConnectTimeout);
  }
  tcp::endpoint to = tcp_.front().acceptor.local_endpoint(error);
  if (to.address().is_unspecified()) {
    to.address(to.protocol() == tcp::v6() ? net::ip::address(net::ip::address_v6::loopback())
                                          : net::ip::address_v4::loopback());
  }
  tcp::socket socket(io_);
  socket.open(to.protocol(), error);
  if (!error) socket.bind(tcp::endpoint(to.address(), 0), error);
  if (error) return absl::UnavailableError(error.message());
  AddOwn(AddressOf(socket.local_endpoint(error)));
  return ConnectWithin(std::move(socket), to, kSelfConnectTimeout);
}

// Those that leave take no place but descriptors, until their clients close too. `num_spared` of
// them may be there beyond the limits.
void GrpcAcceptor::Impl::EndLeavingBeyond(int num_spared, absl::Duration at_least) {
  EndLeaving(options_.max_connections + num_spared,
             options_.max_descriptors + num_spared * (1 + kDescriptorsToGrpc), at_least);
}

void GrpcAcceptor::Impl::EndLeaving(std::int64_t most_connections, std::int64_t most_descriptors,
                                    absl::Duration at_least) {
  const absl::Time since = MonotonicNow() - at_least;
  std::vector<std::shared_ptr<GuardedConnection>> ending;
  ending.reserve(kMaxLeaving);  // what fails with the lock held would come to Left here
  {
    MutexLock lock(&mutex_);
    // Those that are turned away have a limit of their own, and those that were ended and have not
    // left yet are no reason to end others.
    const std::int64_t others = num_turned_away_ + num_ending_;
    const auto num_counted = static_cast<std::int64_t>(connections_.size()) - others;
    const auto num_ended = [&ending] { return static_cast<std::int64_t>(ending.size()); };
    while (num_ended() < kMaxLeaving &&
           (num_counted - num_ended() > most_connections || num_descriptors_ > most_descriptors)) {
      const std::optional<std::uint64_t> number = places_.TakeLeaving(since);
      if (!number) break;
      Known& known = connections_.at(*number);
      ending.push_back(known.connection.lock());
      known.is_ending = true;
      num_descriptors_ -= known.descriptors;
      ++num_ending_;
    }
  }
  for (const auto& connection : ending) {
    if (connection != nullptr) connection->Abort();  // null: it ends already
  }
}

// RESOURCE_EXHAUSTED names the limit when every connection is in use.
absl::Status GrpcAcceptor::Impl::MakeRoomFor(const std::string& ip) {
  std::int64_t of_address = 0;
  {
    MutexLock lock(&mutex_);
    of_address = static_cast<std::int64_t>(places_.size(ip));
  }
  // An address at its limit makes room among its own, and takes no place from others.
  if (!ip.empty() && of_address >= options_.max_connections_per_address && !CloseOne(ip)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        of_address, " connections of this address are open, ",
        "server.grpc.max_connections_per_address is ", options_.max_connections_per_address));
  }
  // More than one gives way where some that were asked to go have stayed.
  for (;;) {
    std::int64_t total = 0, descriptors = 0;
    {
      MutexLock lock(&mutex_);
      total = static_cast<std::int64_t>(places_.size());
      descriptors = places_.descriptors();
    }
    const bool are_too_many = total >= options_.max_connections;
    if (!are_too_many && descriptors < options_.max_descriptors) return absl::OkStatus();
    if (CloseOne(/*ip=*/"")) continue;
    return absl::ResourceExhaustedError(
        are_too_many
            ? absl::StrCat(total, " connections are open, server.grpc.max_connections allows ",
                           options_.max_connections)
            : absl::StrCat(total, " connections are open and take all ", options_.max_descriptors,
                           " descriptors that the listener may have"));
  }
}

// Connection `number` makes its first call. RESOURCE_EXHAUSTED, and none gives way: all that others
// could give would not do.
absl::Status GrpcAcceptor::Impl::MakeRoomToGrpc(std::uint64_t number) {
  const absl::Status none = absl::ResourceExhaustedError(
      absl::StrCat("connections with calls take all ", options_.max_descriptors,
                   " descriptors that the listener may have"));
  {
    MutexLock lock(&mutex_);
    const Known& known = connections_.at(number);
    if (known.is_own) return absl::OkStatus();
    if (known.is_ending) return absl::UnavailableError("the connection is being ended");
    places_.SetPhase(number, Phase::kBusy, MonotonicNow());  // it does not give way to itself
    if (places_.busy_descriptors() + kDescriptorsToGrpc > options_.max_descriptors) return none;
  }
  EndLeavingBeyond(kMaxLeaving, kTimeToLeave);
  EndLeavingBeyond(kMaxWaitedFor, absl::ZeroDuration());
  for (;;) {
    {
      MutexLock lock(&mutex_);
      if (places_.descriptors() + kDescriptorsToGrpc <= options_.max_descriptors) {
        places_.SetDescriptors(number, 1 + kDescriptorsToGrpc);
        return absl::OkStatus();
      }
    }
    if (!CloseOne(/*ip=*/"", /*for_call=*/true)) return none;
  }
}

// False when all connections are busy; those of one address, or of all if that is empty.
bool GrpcAcceptor::Impl::CloseOne(const std::string& ip, bool for_call) {
  std::optional<std::uint64_t> number;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    number = for_call ? places_.TakeOneForCall(now) : places_.TakeOne(ip, now);
  }
  if (!number) return false;
  net::dispatch(door_, [this, number = *number] { GiveWay(number); });
  return true;
}

void GrpcAcceptor::Impl::GiveWay(std::uint64_t number) {
  if (const Accepted* const silent = silent_.Find(number)) {
    CountClosed(silent->peer, CloseCause::kSilent, "a newer connection needs room");
    return silent_.End(number);
  }
  std::shared_ptr<GuardedConnection> connection;
  {
    MutexLock lock(&mutex_);
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;  // it has ended
    found->second.gives_way = true;
    connection = found->second.connection.lock();
  }
  // Null: it is handed on just now (Guard), or ends already.
  if (connection != nullptr) connection->Yield();
}

void GrpcAcceptor::Impl::SetPhase(std::uint64_t number, Phase phase) {
  MutexLock lock(&mutex_);
  places_.SetPhase(number, phase, MonotonicNow());
}

absl::Duration GrpcAcceptor::Impl::Pace(std::uint64_t number, double num_calls) {
  MutexLock lock(&mutex_);
  return pace_.Begin(connections_.at(number).ip, num_calls, MonotonicNow());
}

// From number `first` on, the oldest first.
std::vector<std::shared_ptr<GuardedConnection>> GrpcAcceptor::Impl::Connections(
    std::uint64_t first, std::size_t most) const {
  std::vector<std::shared_ptr<GuardedConnection>> connections;
  MutexLock lock(&mutex_);
  // A copy that is the last one would come to Left here, so none may fail to be added.
  connections.reserve(std::min(most, connections_.size()));
  for (auto it = connections_.lower_bound(first);
       it != connections_.end() && connections.size() < most; ++it) {
    if (auto strong = it->second.connection.lock()) connections.push_back(std::move(strong));
  }
  return connections;
}

// All connections once a second, some at a time.
void GrpcAcceptor::Impl::Tick(std::uint64_t first) {
  if (is_ended_) return;
  std::uint64_t next = 0;  // none, since the first one has been looked at
  const absl::Time now = MonotonicNow();
  const auto connections = Connections(first, kTickedAtOnce);
  for (const auto& connection : connections) connection->Tick(now);
  if (first == 0) EndLateSilent(now);
  if (connections.size() == kTickedAtOnce) next = connections.back()->number() + 1;
  if (next == 0) {
    MutexLock lock(&mutex_);
    pace_.Tick(now);
  }
  if (next > 0) return net::post(door_, [this, next] { Tick(next); });
  tick_.expires_after(kTick);
  tick_.async_wait([this](Error stopped) {
    if (!stopped) Tick(/*first=*/0);
  });
}

// Some at a time; those that came first are the first to be late.
void GrpcAcceptor::Impl::EndLateSilent(absl::Time now) {
  for (std::size_t ended = 0;; ++ended) {
    const std::optional<std::uint64_t> oldest = silent_.oldest();
    if (!oldest) return;
    const Accepted& silent = *silent_.Find(*oldest);
    if (now - silent.since < options_.times.preface) return;
    if (ended == kTickedAtOnce) {
      return net::post(door_, [this, now] { EndLateSilent(now); });
    }
    CountClosed(silent.peer, CloseCause::kSilent, "no HTTP/2 preface came in time");
    silent_.End(*oldest);
  }
}

void GrpcAcceptor::Impl::EndLargest() {
  std::shared_ptr<GuardedConnection> largest;
  for (auto& connection : Connections()) {
    if (largest == nullptr || connection->unfinished_bytes() > largest->unfinished_bytes()) {
      largest = std::move(connection);
    }
  }
  if (largest == nullptr) return;
  largest->Refuse(CloseCause::kMemory, absl::ResourceExhaustedError(absl::StrCat(
                                           "messages whose end has not come have more than half of "
                                           "server.grpc.memory_bytes, ",
                                           options_.max_unfinished_bytes,
                                           " bytes, and this connection holds the most")));
}

// Our end has a name, which gRPC gives to handlers as their peer; no other process can connect to
// it, since it does not listen.
absl::StatusOr<GuardedConnectionHost::ToGrpc> GrpcAcceptor::Impl::Connect(
    std::uint64_t number, const net::any_io_executor& executor, Peer peer) {
  if (is_closing_) return absl::UnavailableError("the process ends");
  QUIRE_RETURN_IF_ERROR(MakeRoomToGrpc(number));
  const std::string name = absl::StrCat(nonce_, next_name_.fetch_add(1));
  std::string grpc_name = absl::StrCat("unix-abstract:", name);
  Local::socket ours(executor), theirs(executor);
  Error error;
  net::local::connect_pair(ours, theirs, error);
  if (!error) ours.bind(Local::endpoint(std::string(1, '\0') + name), error);
  if (!error) theirs.native_non_blocking(true, error);
  if (error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no socket pair for a connection: ", error.message()));
  }
  {
    MutexLock lock(&mutex_);
    Known& known = connections_.at(number);
    known.descriptors += kDescriptorsToGrpc;
    if (!known.is_ending) num_descriptors_ += kDescriptorsToGrpc;
  }
  options_.peers->Add(grpc_name, std::move(peer));
  hand_over_(theirs.release());
  watched_.Add();
  return GuardedConnectionHost::ToGrpc{std::move(ours), std::move(grpc_name)};
}

void GrpcAcceptor::Impl::CountClosed(const Peer& peer, CloseCause cause, absl::string_view why) {
  options_.probe->CountClosedConnection(CloseCauseName(cause));
  if (cause == CloseCause::kIdle) return;  // its client did no wrong
  log::Info("grpc", "connection ended",
            {{"peer", peer.address}, {"cause", CloseCauseName(cause)}, {"why", why}});
}

void GrpcAcceptor::Impl::Left(std::uint64_t number, const std::string& name) {
  if (!name.empty()) options_.peers->Remove(name);
  watched_.Remove();
  if (!name.empty()) watched_.Remove();
  Leave(number);
}

void GrpcAcceptor::Impl::StopAccepting() {
  if (is_closing_.exchange(true)) return;
  for (const std::string& path : socket_paths_) unlink(path.c_str());
  net::post(door_, [this] { StopListening(); });
  for (const auto& connection : Connections()) connection->FinishSoon();
}

void GrpcAcceptor::Impl::StopListening() {
  Error ignored;
  for (auto& listening : tcp_) listening.acceptor.close(ignored);
  for (auto& listening : unix_) listening.acceptor.close(ignored);
  for (auto& listening : tcp_) listening.pause.cancel();
  for (auto& listening : unix_) listening.pause.cancel();
  while (const auto oldest = silent_.oldest()) silent_.End(*oldest);
}

void GrpcAcceptor::Impl::WaitClosed(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!connections_.empty() && MonotonicNow() < deadline) left_.WaitUntil(&mutex_, deadline);
}

GrpcAcceptor::Impl::~Impl() {
  StopAccepting();
  for (const auto& connection : Connections()) connection->Abort();
  if (!threads_.empty()) WaitClosed(absl::InfiniteFuture());
  is_ended_ = true;
  net::post(door_, [this] { tick_.cancel(); });
  work_.reset();
  door_work_.reset();
  for (std::thread& thread : threads_) thread.join();
}

GrpcAcceptor::GrpcAcceptor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrpcAcceptor::~GrpcAcceptor() = default;

absl::StatusOr<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::Bind(GrpcAcceptorOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  QUIRE_RETURN_IF_ERROR(impl->Bind());
  return std::unique_ptr<GrpcAcceptor>(new GrpcAcceptor(std::move(impl)));
}

const std::vector<std::string>& GrpcAcceptor::addresses() const {
  return impl_->addresses();
}
int GrpcAcceptor::num_connections() const {
  return impl_->num_connections();
}
void GrpcAcceptor::Start(std::function<void(int)> hand_over) {
  impl_->Start(std::move(hand_over));
}
absl::StatusOr<int> GrpcAcceptor::ConnectToSelf() {
  return impl_->ConnectToSelf();
}
void GrpcAcceptor::StopAccepting() {
  impl_->StopAccepting();
}
void GrpcAcceptor::WaitClosed(absl::Time deadline) {
  impl_->WaitClosed(deadline);
}

}  // namespace quire::server
