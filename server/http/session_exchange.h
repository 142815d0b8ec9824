#pragma once

// The HttpExchange of a session: the current request, and the encoding of its answer.
//
// Place:      inside HttpSession, which sends the bytes. Handlers share ownership of the session.
// Invariants: the exchange is open from Open until the answer is complete or Abandon is called.
//             While it is closed, Answer, BeginStream, Write and EndStream do nothing, and OnGone
//             runs its callback at once.
// Threads:    runs on the strand of the session. Post is thread-safe.

#include <functional>
#include <string>

#include "server/http/http_message.h"

namespace quire::server {

class HttpSession;

class SessionExchange final : public HttpExchange {
 public:
  explicit SessionExchange(HttpSession* session) : session_(session) {}

  // Prepares for the next request of the connection. The certificate name stays.
  void Reset();
  HttpRequest* mutable_request() { return &request_; }
  // If `is_chunked` is false, the end of a stream is marked by closing the connection.
  void SetFraming(bool keep_alive, bool is_chunked);
  void Open() { is_open_ = true; }
  // Closes the exchange because the connection is closed, and runs the callback of OnGone.
  void Abandon();
  // Returns true if the connection stays open after this exchange.
  bool keep_alive() const { return keep_alive_; }

  const HttpRequest& request() const override { return request_; }
  std::string TakeBody() override;
  void Post(std::function<void()> work) override;
  void Answer(HttpAnswer answer) override;
  void BeginStream(HttpAnswer head) override;
  void Write(std::string bytes, std::function<void()> on_written) override;
  void EndStream(bool is_complete) override;
  void OnGone(std::function<void()> callback) override;

 private:
  std::string Head(const HttpAnswer& answer, bool has_length) const;
  void Send(std::string bytes, std::function<void()> done);
  void End();

  HttpSession* const session_;
  HttpRequest request_;
  bool is_open_ = false;
  bool keep_alive_ = false;
  bool is_chunked_ = false;        // encoding of a stream's body
  bool has_begun_answer_ = false;  // part of the answer may have been sent
  std::string stream_head_;        // sent with the first write
  std::function<void()> on_gone_;
};

}  // namespace quire::server
