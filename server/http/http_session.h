#pragma once

// One connection: reads requests, one after the other, and is their HttpExchange.
//
//   handshake -> reading -> handling -> reading ... -> lingering -> closed
//
// Place:      made by HttpServer for each connection that it accepts.
// Invariants: while a handler works, the connection is read too: its end, or bytes of a next
//             request, which wait; once those are as many as a head may have, no more is read.
//             What is read and not parsed is never much more than that. At most one write is under
//             way. A closed session stays closed. An exception of a library closes the
//             connection only.
// Threads:    the sequence of its transport; Post, Begin, FinishSoon, Evict and Abort from any.
// Lifetime:   kept by its pending operations and by handlers; `host` outlives it, and learns of its
//             end.

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/error_reason.h"
#include "server/http/http_server.h"
#include "server/net/connection_places.h"
#include "server/net/transport.h"

namespace quire::server {

// What sessions ask of the server that they belong to.
class HttpSessionHost {
 public:
  virtual const HttpServerOptions& options() const = 0;
  virtual void Handle(const std::shared_ptr<HttpExchange>& exchange) = 0;
  virtual bool closing() const = 0;
  virtual void SetPhase(std::uint64_t number, Phase phase) = 0;
  // The last call of a session.
  virtual void Left(std::uint64_t number) = 0;

 protected:
  ~HttpSessionHost() = default;
};

class HttpSession final : public HttpExchange, public std::enable_shared_from_this<HttpSession> {
 public:
  // `number`: its name for the host. `surplus` says why there is no place for this connection: only
  // probes are answered, all other requests get 503 with that text as soon as their head is there.
  // Empty: it has a place.
  HttpSession(HttpSessionHost* host, std::uint64_t number, std::unique_ptr<Transport> transport,
              std::string surplus);

  void Begin();
  // Closes now if no answer is under way, else behind it.
  void FinishSoon();
  // Closes the connection to make room for a new one. Returns false if it is not in that phase any
  // more.
  bool Evict(Phase phase);
  void Abort();

  const HttpRequest& request() const override { return request_; }
  std::string TakeBody() override { return std::exchange(request_.body, ""); }
  void Post(std::function<void()> work) override;
  void Answer(HttpAnswer answer) override;
  void BeginStream(HttpAnswer head) override;
  void Write(std::string bytes, std::function<void()> on_written) override;
  void EndStream(bool whole) override;
  void OnGone(std::function<void()> callback) override;

 private:
  enum class State : std::uint8_t { kHandshake, kReading, kHandling, kLingering, kClosed };
  using Error = Transport::Error;

  template <typename Work>
  void Guard(const Work& work);
  void Enter(Phase phase);
  void BeginRequest();
  bool SkipEmptyLines();
  void ReadMore();
  void ReadAhead();
  void OnRead(Error error, std::size_t size);
  void Parse();
  bool AwaitsContinue() const;
  void SendContinue();
  void Refuse(Error error);
  void RefuseWith(Reason reason, absl::string_view message);
  void RefuseWith(const absl::Status& error);
  void RefuseWith(HttpAnswer answer);
  bool TakeHead();
  bool TakeHeadOfBody();
  absl::Status ReadHead();
  void ArmForBody();
  void Handle();
  std::string Head(const HttpAnswer& answer, bool has_length) const;
  void Send(std::string bytes, std::function<void()> done);
  void EndExchange();
  void Linger();
  void Close();
  void Arm(absl::Duration time);
  void Disarm() { is_armed_ = false; }
  void OnTimer();

  // First member, so that its destructor runs last.
  struct SessionCloser {
    ~SessionCloser() { host->Left(number); }
    HttpSessionHost* host;
    std::uint64_t number;
  };
  const SessionCloser closer_;
  HttpSessionHost* const host_;
  const std::unique_ptr<Transport> transport_;
  const std::string surplus_;
  boost::asio::steady_timer timer_;
  bool is_armed_ = false;

  State state_ = State::kHandshake;
  std::array<char, 16 << 10> chunk_;
  bool is_reading_ = false;
  std::string input_;  // read, not parsed
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool has_begun_ = false;  // some of the request is there
  bool is_head_parsed_ = false;
  absl::Time body_deadline_;
  bool is_continuing_ = false;  // "100 Continue" is being written, before any other byte may be
  std::atomic<Phase> phase_{Phase::kIdle};
  std::int64_t served_ = 0;
  std::size_t lingered_bytes_ = 0;

  HttpRequest request_;
  bool keep_alive_ = false;
  bool has_answer_ = false;  // some of the answer may be out
  bool is_chunked_ = false;  // how a stream's body leaves
  std::string stream_head_;  // waits for the first piece
  std::string outgoing_;
  std::function<void()> on_gone_;
};

}  // namespace quire::server
