#pragma once

// One connection of an HTTP server: reads requests and serves them one after the other.
//
//   handshake -> reading -> handling -> reading ... -> lingering -> closed
//
// Place:      HttpServer creates one for each connection that it accepts. RequestReader parses,
//             SessionExchange encodes answers.
// Invariants: while a handler runs, the connection is read too, to notice when the peer closes it.
//             Bytes of the next request are buffered, and reading pauses when max_head_bytes are
//             buffered. At most one write is pending. A closed session stays closed. If a library
//             throws an exception, only the session's own connection is closed.
// Threads:    runs on the strand of its transport. Begin, FinishSoon, Evict, Abort and Post are
//             thread-safe.
// Lifetime:   its pending operations and handlers keep it alive. `host` outlives it.

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/http/http_server.h"
#include "server/http/request_reader.h"
#include "server/http/session_exchange.h"
#include "server/net/connection_evictor.h"
#include "server/net/transport.h"

namespace quire::server {

// The functions of the server that its sessions call.
class HttpSessionHost {
 public:
  virtual const HttpServerOptions& options() const = 0;
  virtual void Handle(const std::shared_ptr<HttpExchange>& exchange) = 0;
  virtual bool closing() const = 0;
  virtual void SetPhase(std::uint64_t number, Phase phase) = 0;
  // The destructor of a session calls this last.
  virtual void Remove(std::uint64_t number) = 0;

 protected:
  ~HttpSessionHost() = default;
};

class HttpSession final : public std::enable_shared_from_this<HttpSession> {
 public:
  // `number` identifies the session in calls of the host. A non-empty `over_limit_message` names
  // the connection limit that is reached. The session then answers its first request and closes. It
  // serves a health probe, and answers any other request with 503 and this message.
  HttpSession(HttpSessionHost* host, std::uint64_t number, std::unique_ptr<Transport> transport,
              std::string over_limit_message);

  void Begin();
  // Closes the connection, after the current answer if there is one.
  void FinishSoon();
  // Closes the connection to make room for a new one. Returns false if the session is no longer in
  // `phase`.
  bool Evict(Phase phase);
  void Abort();
  // Runs `work` on the strand.
  void Post(std::function<void()> work);

  // The exchange calls the functions below.
  bool closing() const { return host_->closing(); }
  // Writes `bytes`. `done` runs only if all were written and the session is still open.
  void Send(std::string bytes, std::function<void()> done);
  // Called once the answer is complete.
  void OnAnswered();

 private:
  enum class State : std::uint8_t { kHandshake, kReading, kHandling, kLingering, kClosed };
  using Error = Transport::Error;

  template <typename Work>
  void CloseOnException(const Work& work);
  void EnterPhase(Phase phase);
  void BeginRequest();
  void ReadMore();
  void OnRead(Error error, std::size_t size);
  void Parse();
  std::optional<HttpAnswer> ProcessHead();
  HttpAnswer MakeRefusal(const absl::Status& error) const;
  std::string DescribeTimeout() const;
  void Refuse(HttpAnswer answer);
  void ArmBodyTimer();
  void SendContinue();
  void Handle();
  void Linger();
  void Close();
  void ArmTimer(absl::Duration time);
  void OnTimer();

  // First member, so that its destructor runs last.
  struct SessionCloser {
    ~SessionCloser() { host->Remove(number); }
    HttpSessionHost* host;
    std::uint64_t number;
  };
  const SessionCloser closer_;
  HttpSessionHost* const host_;
  const std::unique_ptr<Transport> transport_;
  const std::string over_limit_message_;
  boost::asio::steady_timer timer_;
  bool is_timer_armed_ = false;

  State state_ = State::kHandshake;
  std::atomic<Phase> phase_{Phase::kIdle};
  std::array<char, 16 << 10> chunk_;
  bool is_reading_ = false;
  RequestReader reader_;
  absl::Time body_deadline_;
  bool is_writing_continue_ = false;  // "100 Continue" is being written; no other write may start
  std::int64_t num_served_ = 0;
  std::size_t lingered_bytes_ = 0;

  SessionExchange exchange_{this};
  std::string outgoing_;
};

}  // namespace quire::server
