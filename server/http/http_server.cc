#include "server/http/http_server.h"

#include <fcntl.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "server/http/connection_table.h"
#include "server/http/http_session.h"
#include "server/http/self_call.h"
#include "server/net/peer_address.h"
#include "server/net/tcp_listening.h"
#include "server/net/tls_context.h"
#include "server/net/transport.h"

namespace quire::server {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using Error = boost::system::error_code;

// Size of a connection's send buffer in the kernel. Without a limit, the buffer grows to megabytes
// while the client does not read.
constexpr int kSendBufferBytes = 128 << 10;
// Pause after a failed accept, for example if no descriptor is free.
constexpr std::chrono::milliseconds kAcceptPause{20};
// Maximum number of connections that are closed after one failed accept if no descriptor is free.
constexpr int kMaxClosedAtOnce = 16;
constexpr absl::Duration kWarningInterval = absl::Seconds(10);

// Opens a spare descriptor. If no other descriptor is free, RejectWaiting closes the spare
// descriptor. RejectWaiting can then accept and close waiting connections, so that their clients
// learn of the failure at once. Returns an invalid descriptor if none is free. The next call of
// RejectWaiting tries again.
FileDescriptor OpenSpareDescriptor() {
  return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace

class HttpServer::Impl final : public HttpSessionHost {
 public:
  Impl(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        io_(options_.num_threads),
        tls_(options_.certificates == nullptr
                 ? nullptr
                 : std::make_unique<TlsContext>(options_.certificates,
                                                options_.requires_client_certificate,
                                                TlsProtocol::kHttp1)),
        table_(static_cast<std::size_t>(options_.max_connections),
               options_.max_connections_per_address),
        work_(net::make_work_guard(io_)),
        strand_(net::make_strand(io_)),
        self_call_(strand_) {}

  absl::Status Listen();
  void Run();
  void CheckReachable();
  void Shutdown(absl::Time deadline);

  const std::string& address() const { return address_; }
  int num_connections() const { return static_cast<int>(table_.size()); }
  bool is_reachable() const { return self_call_.is_reachable(); }

  const HttpServerOptions& options() const override { return options_; }
  void Handle(const std::shared_ptr<HttpExchange>& exchange) override { handler_(exchange); }
  bool closing() const override { return is_closing_.load(std::memory_order_acquire); }
  void SetPhase(std::uint64_t number, Phase phase) override { table_.SetPhase(number, phase); }
  void Remove(std::uint64_t number) override { table_.Remove(number); }

 private:
  struct Listening {
    tcp::acceptor acceptor;
    net::steady_timer pause;
  };

  void Serve();
  void WaitForConnection(Listening* listening);
  void OnConnection(Listening* listening);
  Error AcceptOne(tcp::acceptor& acceptor);
  void OnFailure(const Error& error, tcp::acceptor& acceptor);
  void OnAccept(tcp::socket socket);
  void RejectWaiting(tcp::acceptor& acceptor);

  const HttpServerOptions options_;
  const HttpHandler handler_;
  std::string address_;
  std::atomic<bool> is_closing_{false};

  net::io_context io_;
  const std::unique_ptr<TlsContext> tls_;  // null: plain text
  ConnectionTable table_;
  net::executor_work_guard<net::io_context::executor_type> work_;
  net::strand<net::io_context::executor_type> strand_;  // runs the handlers of acceptors
  std::list<Listening> listening_;
  std::vector<std::thread> threads_;

  // Used in the strand.
  SelfCall self_call_;
  FileDescriptor spare_descriptor_ = OpenSpareDescriptor();
  std::uint64_t next_number_ = 0;  // number of the next session
  std::int64_t failures_ = 0;      // failed accepts since the last warning
  absl::Time next_warning_ = absl::InfinitePast();
};

absl::Status HttpServer::Impl::Listen() {
  QUIRE_ASSIGN_OR_RETURN(TcpListening listening,
                         ListenOnTcp(options_.address, /*reuse_port=*/false, strand_));
  for (tcp::acceptor& acceptor : listening.acceptors) {
    Error error;
    acceptor.non_blocking(true, error);
    // Without this option accept would skip an aborted connection and block for the next one.
    if (!error) acceptor.set_option(tcp::acceptor::enable_connection_aborted(true), error);
    if (error) return BindError(options_.address, error);
    listening_.push_back({std::move(acceptor), net::steady_timer(strand_)});
  }
  address_ = std::move(listening.address);
  return absl::OkStatus();
}

void HttpServer::Impl::Run() {
  net::post(strand_, [this] {
    for (Listening& listening : listening_) WaitForConnection(&listening);
  });
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] { Serve(); });
  }
}

// Sessions catch exceptions of themselves and of their handlers. TlsContext and Transport catch
// exceptions of Asio. Any other exception reaches this function and is logged. If it was thrown by
// the handler of a listening socket, that socket accepts no more connections.
void HttpServer::Impl::Serve() {
  SetThreadName(options_.thread_name);
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      log::Error("http", "exception while accepting connections", {{"error", error.what()}});
    }
  }
}

// Waits and accepts in two operations, so that accepting continues after a failed accept, for
// example for lack of descriptors.
void HttpServer::Impl::WaitForConnection(Listening* listening) {
  listening->acceptor.async_wait(tcp::acceptor::wait_read, [this, listening](Error) {
    if (!closing()) OnConnection(listening);
  });
}

void HttpServer::Impl::OnConnection(Listening* listening) {
  const Error error = AcceptOne(listening->acceptor);
  if (!error) return WaitForConnection(listening);
  OnFailure(error, listening->acceptor);
  listening->pause.expires_after(kAcceptPause);
  listening->pause.async_wait([this, listening](Error stopped) {
    if (!stopped && !closing()) WaitForConnection(listening);
  });
}

// Returns no error if the client has closed the connection before it is accepted.
Error HttpServer::Impl::AcceptOne(tcp::acceptor& acceptor) {
  Error error;
  tcp::socket socket(net::make_strand(io_));
  acceptor.accept(socket, error);
  if (!error) OnAccept(std::move(socket));
  const bool has_gone = error == net::error::would_block || error == net::error::try_again ||
                        error == net::error::connection_aborted || error == net::error::interrupted;
  return has_gone ? Error() : error;
}

void HttpServer::Impl::OnFailure(const Error& error, tcp::acceptor& acceptor) {
  ++failures_;
  const absl::Time now = MonotonicNow();
  if (now >= next_warning_) {
    next_warning_ = now + kWarningInterval;
    log::Warn("http", "connections not accepted",
              {{"address", address_},
               {"error", error.message()},
               {"failures", std::exchange(failures_, 0)}});
  }
  if (error.value() != EMFILE && error.value() != ENFILE) return;
  int closed = 0;
  while (closed < kMaxClosedAtOnce && table_.EvictOne()) ++closed;
  if (closed == 0) RejectWaiting(acceptor);
}

// Closes the spare descriptor, then accepts up to kMaxClosedAtOnce waiting connections and closes
// each at once.
void HttpServer::Impl::RejectWaiting(tcp::acceptor& acceptor) {
  spare_descriptor_ = FileDescriptor();
  Error error;
  for (int i = 0; i < kMaxClosedAtOnce && !error; ++i) {
    tcp::socket socket(io_);
    acceptor.accept(socket, error);
  }
  spare_descriptor_ = OpenSpareDescriptor();
}

void HttpServer::Impl::OnAccept(tcp::socket socket) {
  Error gone;  // if the client has closed, the address is unspecified and the first read fails
  const PeerAddress peer = PeerAddressOf(socket.remote_endpoint(gone).address());
  std::string over_limit_message = table_.MakeRoom(peer);
  const bool is_over_limit = !over_limit_message.empty();
  if (is_over_limit && !table_.MakeReservedRoom()) return;
  Error ignored;  // these options only affect performance
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(tcp::socket::send_buffer_size(kSendBufferBytes), ignored);
  std::unique_ptr<Transport> transport;
  if (tls_ == nullptr) {
    transport = NewPlainTransport(std::move(socket));
  } else {
    auto context = tls_->Current();
    if (context == nullptr) return;
    transport = NewTlsTransport(std::move(socket), std::move(context));
  }
  const std::uint64_t number = next_number_++;
  auto session = std::make_shared<HttpSession>(this, number, std::move(transport),
                                               std::move(over_limit_message));
  table_.Add(number, session, peer, is_over_limit);
  session->Begin();
}

void HttpServer::Impl::CheckReachable() {
  net::post(strand_, [this] {
    Error error;
    const tcp::endpoint own = listening_.front().acceptor.local_endpoint(error);
    if (!closing() && !error) self_call_.Begin(own);
  });
}

void HttpServer::Impl::Shutdown(absl::Time deadline) {
  if (threads_.empty()) return;
  is_closing_.store(true, std::memory_order_release);
  net::post(strand_, [this] {
    for (Listening& listening : listening_) {
      Error ignored;
      listening.acceptor.close(ignored);
      listening.pause.cancel();
    }
    self_call_.End();
  });
  for (const auto& session : table_.Sessions()) session->FinishSoon();
  if (!table_.WaitUntilEmpty(deadline)) {
    for (const auto& session : table_.Sessions()) session->Abort();
    table_.WaitUntilEmpty(absl::InfiniteFuture());
  }
  work_.reset();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                              HttpHandler handler) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
  QUIRE_RETURN_IF_ERROR(impl->Listen());
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  Shutdown(absl::InfinitePast());
}

const std::string& HttpServer::address() const {
  return impl_->address();
}

void HttpServer::CheckReachable() {
  impl_->CheckReachable();
}

bool HttpServer::is_reachable() const {
  return impl_->is_reachable();
}

int HttpServer::num_connections() const {
  return impl_->num_connections();
}

void HttpServer::Shutdown(absl::Time deadline) {
  impl_->Shutdown(deadline);
}

}  // namespace quire::server
