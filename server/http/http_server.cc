#include "server/http/http_server.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <exception>
#include <initializer_list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "server/config/validator.h"
#include "server/http/http_session.h"
#include "server/edge/tls_context.h"
#include "server/edge/transport.h"

namespace quire::server {
namespace {

namespace net = boost::asio;
using net::ip::tcp;
using Error = boost::system::error_code;

// Connections above the limit that may still be told so; those above are closed without a word.
constexpr int kMaxSurplus = 64;
// Of the system for each connection, so that one that does not read holds little; left alone it
// would grow to megabytes.
constexpr int kSendBufferBytes = 128 << 10;
// After a failed accept, such as for want of descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};

absl::StatusOr<tcp::endpoint> Resolve(net::io_context& io, const std::string& text) {
  ListenAddress address;
  if (!ParseListenAddress(text, &address) || address.is_unix) {
    return absl::InvalidArgumentError(absl::StrCat("address ", text, " is not host:port"));
  }
  const std::string host = address.host == "*" ? "0.0.0.0" : address.host;
  tcp::resolver resolver(io);
  Error error;
  const auto found =
      resolver.resolve(host, absl::StrCat(address.port),
                       tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address ", text, " cannot be resolved: ", error.message()));
  }
  return found.begin()->endpoint();
}

absl::Status BindError(const std::string& address, const Error& error) {
  const std::string text =
      absl::StrCat("address ", address, " cannot be listened on: ", error.message());
  return error == net::error::address_in_use ? absl::AlreadyExistsError(text)
                                             : absl::InvalidArgumentError(text);
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
        work_(net::make_work_guard(io_)),
        acceptor_(net::make_strand(io_)),
        pause_(acceptor_.get_executor()) {}

  absl::Status Listen();
  void Run();
  void Shutdown(absl::Time deadline);

  const std::string& address() const { return address_; }
  int num_connections() const {
    MutexLock lock(&mutex_);
    return static_cast<int>(sessions_.size());
  }

  const HttpServerOptions& options() const override { return options_; }
  void Handle(const std::shared_ptr<HttpExchange>& exchange) override { handler_(exchange); }
  bool closing() const override { return is_closing_.load(std::memory_order_acquire); }
  void Left(const HttpSession* session) override {
    MutexLock lock(&mutex_);
    sessions_.erase(session);
    left_.NotifyAll();
  }

 private:
  void Serve();
  void Accept();
  void OnAccept(tcp::socket socket);
  bool MakeRoom();
  std::vector<std::shared_ptr<HttpSession>> Sessions() const;
  bool WaitUntilEmpty(absl::Time deadline);

  const HttpServerOptions options_;
  const HttpHandler handler_;
  std::string address_;
  std::atomic<bool> is_closing_{false};

  mutable Mutex mutex_;
  CondVar left_;
  struct Known {
    std::uint64_t number = 0;  // in the order of their coming
    std::weak_ptr<HttpSession> session;
  };
  std::map<const HttpSession*, Known> sessions_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;

  net::io_context io_;
  const std::unique_ptr<TlsContext> tls_;  // null: plain text
  net::executor_work_guard<net::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  net::steady_timer pause_;
  std::vector<std::thread> threads_;
};

absl::Status HttpServer::Impl::Listen() {
  QUIRE_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, Resolve(io_, options_.address));
  Error error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (error) return BindError(options_.address, error);
  const tcp::endpoint bound = acceptor_.local_endpoint(error);
  if (error) return BindError(options_.address, error);
  const std::size_t colon = options_.address.rfind(':');
  address_ = absl::StrCat(options_.address.substr(0, colon + 1), bound.port());
  return absl::OkStatus();
}

void HttpServer::Impl::Run() {
  net::post(acceptor_.get_executor(), [this] { Accept(); });
  for (int i = 0; i < options_.num_threads; ++i) {
    threads_.emplace_back([this] { Serve(); });
  }
}

// Sessions catch what they and their handlers throw; only an accept without memory throws here.
void HttpServer::Impl::Serve() {
  SetThreadName("http");
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception& error) {
      log::Error("http", "exception", {{"error", error.what()}});
    }
  }
}

void HttpServer::Impl::Accept() {
  acceptor_.async_accept(net::make_strand(io_), [this](Error error, tcp::socket socket) {
    if (closing()) return;
    if (!error) {
      OnAccept(std::move(socket));
      return Accept();
    }
    log::Warn("http", "connection not accepted", {{"error", error.message()}});
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](Error stopped) {
      if (!stopped && !closing()) Accept();
    });
  });
}

void HttpServer::Impl::OnAccept(tcp::socket socket) {
  const int others = num_connections();
  if (others >= options_.max_connections + kMaxSurplus) return;
  Error ignored;  // tuning, not meaning
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
  const bool is_surplus = others >= options_.max_connections && !MakeRoom();
  auto session = std::make_shared<HttpSession>(this, std::move(transport), is_surplus);
  {
    MutexLock lock(&mutex_);
    sessions_.emplace(session.get(), Known{.number = next_number_++, .session = session});
  }
  session->Begin();
}

// A client that has connected and said nothing gives way to one that comes later, the oldest first;
// then a client that was served and says nothing more.
bool HttpServer::Impl::MakeRoom() {
  const std::vector<std::shared_ptr<HttpSession>> alive = Sessions();
  for (bool (HttpSession::*const yield)() : {&HttpSession::YieldSilent, &HttpSession::YieldIdle}) {
    for (const auto& session : alive) {
      if ((session.get()->*yield)()) return true;
    }
  }
  return false;
}

// The oldest first.
std::vector<std::shared_ptr<HttpSession>> HttpServer::Impl::Sessions() const {
  std::map<std::uint64_t, std::shared_ptr<HttpSession>> by_age;
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, known] : sessions_) {
      if (auto strong = known.session.lock()) by_age.emplace(known.number, std::move(strong));
    }
  }
  std::vector<std::shared_ptr<HttpSession>> alive;
  for (auto& [number, session] : by_age) alive.push_back(std::move(session));
  return alive;
}

bool HttpServer::Impl::WaitUntilEmpty(absl::Time deadline) {
  MutexLock lock(&mutex_);
  while (!sessions_.empty() && MonotonicNow() < deadline) left_.WaitUntil(&mutex_, deadline);
  return sessions_.empty();
}

void HttpServer::Impl::Shutdown(absl::Time deadline) {
  if (threads_.empty()) return;
  is_closing_.store(true, std::memory_order_release);
  net::post(acceptor_.get_executor(), [this] {
    Error ignored;
    acceptor_.close(ignored);
    pause_.cancel();
  });
  for (const auto& session : Sessions()) session->FinishSoon();
  if (!WaitUntilEmpty(deadline)) {
    for (const auto& session : Sessions()) session->Abort();
    WaitUntilEmpty(absl::InfiniteFuture());
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

int HttpServer::num_connections() const {
  return impl_->num_connections();
}

void HttpServer::Shutdown(absl::Time deadline) {
  impl_->Shutdown(deadline);
}

}  // namespace quire::server
