#include "server/http/session_exchange.h"

#include <boost/beast/http/status.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/http/http_session.h"

namespace quire::server {

namespace http = boost::beast::http;

void SessionExchange::Reset() {
  std::string certificate_name = std::move(request_.certificate_name);
  request_ = HttpRequest();
  request_.certificate_name = std::move(certificate_name);
  has_begun_answer_ = false;
}

void SessionExchange::SetFraming(bool keep_alive, bool is_chunked) {
  keep_alive_ = keep_alive;
  is_chunked_ = is_chunked;
}

void SessionExchange::Abandon() {
  is_open_ = false;
  const std::function<void()> gone = std::exchange(on_gone_, nullptr);
  if (gone) gone();
}

std::string SessionExchange::TakeBody() {
  return std::exchange(request_.body, "");
}

void SessionExchange::Post(std::function<void()> work) {
  session_->Post(std::move(work));
}

void SessionExchange::OnGone(std::function<void()> callback) {
  if (is_open_) {
    on_gone_ = std::move(callback);
  } else if (callback) {
    callback();
  }
}

std::string SessionExchange::Head(const HttpAnswer& answer, bool has_length) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(answer.status));
  std::string head = absl::StrCat(
      "HTTP/1.1 ", answer.status, " ", absl::string_view(reason.data(), reason.size()),
      "\r\nDate: ", absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone()),
      "\r\nContent-Type: ", answer.content_type, "\r\nCache-Control: no-store\r\n");
  for (const auto& [name, value] : answer.headers)
    absl::StrAppend(&head, name, ": ", value, "\r\n");
  if (has_length) {
    absl::StrAppend(&head, "Content-Length: ", answer.body.size(), "\r\n");
  } else if (is_chunked_) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  absl::StrAppend(&head, "Connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
  return head;
}

void SessionExchange::Answer(HttpAnswer answer) {
  if (!is_open_ || has_begun_answer_) return;
  if (session_->closing()) keep_alive_ = false;
  std::string bytes = Head(answer, /*has_length=*/true);
  if (request_.method != "HEAD") bytes += answer.body;
  Send(std::move(bytes), [this] { End(); });
}

void SessionExchange::BeginStream(HttpAnswer head) {
  if (!is_open_ || has_begun_answer_) return;
  // Without chunks, only closing the connection marks the end of the body.
  if (!is_chunked_ || session_->closing()) keep_alive_ = false;
  stream_head_ = Head(head, /*has_length=*/false);
}

void SessionExchange::Write(std::string bytes, std::function<void()> on_written) {
  if (!is_open_) return;
  std::string piece = std::exchange(stream_head_, "");
  if (is_chunked_) {
    absl::StrAppend(&piece, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
  } else {
    piece += bytes;
  }
  Send(std::move(piece), std::move(on_written));
}

void SessionExchange::EndStream(bool is_complete) {
  if (!is_open_) return;
  std::string piece = std::exchange(stream_head_, "");
  if (is_complete && is_chunked_) {
    piece += "0\r\n\r\n";
  } else {
    keep_alive_ = false;
  }
  if (piece.empty()) return End();
  Send(std::move(piece), [this] { End(); });
}

void SessionExchange::Send(std::string bytes, std::function<void()> done) {
  has_begun_answer_ = true;
  session_->Send(std::move(bytes), std::move(done));
}

void SessionExchange::End() {
  is_open_ = false;
  on_gone_ = nullptr;
  TakeBody();
  session_->OnAnswered();
}

}  // namespace quire::server
