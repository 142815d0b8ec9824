#include "server/http/http_session.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "server/http/request_head.h"

namespace quire::server {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;

// What a peer may still send after an answer that ends the connection, and how long.
constexpr std::size_t kMaxLingerBytes = 1 << 20;
constexpr absl::Duration kLingerTime = absl::Seconds(2);

}  // namespace

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

HttpSession::HttpSession(HttpSessionHost* host, std::uint64_t number,
                         std::unique_ptr<Transport> transport, std::string surplus)
    : closer_{host, number},
      host_(host),
      transport_(std::move(transport)),
      surplus_(std::move(surplus)),
      timer_(transport_->executor()) {}

// quire throws nothing, but libraries may. The state of the session is unknown then, so the
// connection is closed.
template <typename Work>
void HttpSession::Guard(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    log::Error("http", "closing the connection: exception", {{"error", error.what()}});
  }
  Close();
}

void HttpSession::Begin() {
  net::dispatch(transport_->executor(), [self = shared_from_this()] {
    self->Guard([&] {
      // The server may have begun to end before it knew of this session.
      if (self->host_->closing()) return self->Close();
      self->Arm(self->host_->options().head_time);
      self->transport_->Handshake([self](Error error) {
        self->Guard([&] {
          if (error) return self->Close();
          self->request_.certificate_name = self->transport_->CertificateName();
          self->BeginRequest();
        });
      });
    });
  });
}

void HttpSession::FinishSoon() {
  Post([this] {
    if (state_ == State::kHandshake || state_ == State::kReading) Close();
  });
}

bool HttpSession::Evict(Phase phase) {
  if (!phase_.compare_exchange_strong(phase, Phase::kClosing)) return false;
  Abort();
  return true;
}

// A session that is being evicted keeps its phase, whatever arrives meanwhile.
void HttpSession::Enter(Phase phase) {
  Phase before = phase_.load();
  do {
    if (before == Phase::kClosing) return;
  } while (!phase_.compare_exchange_weak(before, phase));
  host_->SetPhase(closer_.number, phase);
}

void HttpSession::Abort() {
  Post([this] { Close(); });
}

void HttpSession::Post(std::function<void()> work) {
  net::post(transport_->executor(),
            [self = shared_from_this(), work = std::move(work)] { self->Guard(work); });
}

void HttpSession::OnGone(std::function<void()> callback) {
  if (state_ == State::kHandling) {
    on_gone_ = std::move(callback);
  } else if (callback) {
    callback();
  }
}

void HttpSession::BeginRequest() {
  if (host_->closing()) return Close();
  const HttpServerOptions& options = host_->options();
  state_ = State::kReading;
  parser_.emplace();
  // The parser stops behind the head, so that trailers are not taken for headers.
  parser_->eager(false);
  parser_->header_limit(options.max_head_bytes);
  parser_->body_limit(static_cast<std::uint64_t>(options.max_body_bytes()));
  has_begun_ = SkipEmptyLines();
  is_head_parsed_ = false;
  has_answer_ = false;
  std::string certificate_name = std::move(request_.certificate_name);
  request_ = HttpRequest();
  request_.certificate_name = std::move(certificate_name);
  Arm(served_ == 0 || has_begun_ ? options.head_time : options.idle_time);
  if (served_ > 0) Enter(has_begun_ ? Phase::kStalled : Phase::kIdle);
  if (has_begun_) return Parse();
  ReadMore();
}

// Drops empty lines before a request line (RFC 9112, section 2.2) and returns whether anything else
// has arrived. Empty lines do not begin a request: some clients send one after a body.
bool HttpSession::SkipEmptyLines() {
  std::size_t size = 0;
  while (input_.compare(size, 2, "\r\n") == 0) size += 2;
  input_.erase(0, size);
  return !input_.empty() && input_ != "\r";
}

void HttpSession::ReadMore() {
  if (is_reading_) return;
  is_reading_ = true;
  transport_->ReadSome(net::buffer(chunk_),
                       [self = shared_from_this()](Error error, std::size_t size) {
                         self->Guard([&] { self->OnRead(error, size); });
                       });
}

// While a handler works: the end of the peer is seen behind early bytes too, up to a bound.
void HttpSession::ReadAhead() {
  if (input_.size() < host_->options().max_head_bytes) ReadMore();
}

void HttpSession::OnRead(Error error, std::size_t size) {
  is_reading_ = false;
  if (phase_.load() == Phase::kStalled) Enter(Phase::kStalled);  // it has not stopped
  switch (state_) {
    case State::kReading:
      if (error) return Close();
      input_.append(chunk_.data(), size);
      if (!has_begun_) {
        has_begun_ = SkipEmptyLines();
        if (!has_begun_) return ReadMore();
        if (served_ > 0) Enter(Phase::kStalled);
        Arm(host_->options().head_time);
      } else if (is_head_parsed_) {
        ArmForBody();
      }
      if (is_continuing_) return;  // its end parses
      return Parse();
    case State::kHandling:
      // The peer has gone, or has sent its next request early, of which only some is kept.
      if (error) return Close();
      input_.append(chunk_.data(), size);
      return ReadAhead();
    case State::kLingering:
      lingered_bytes_ += size;
      if (error || lingered_bytes_ > kMaxLingerBytes) return Close();
      return ReadMore();
    default:
      return;
  }
}

void HttpSession::Parse() {
  while (!input_.empty()) {
    Error error;
    const std::size_t used = parser_->put(net::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) return Refuse(error);
    if (!is_head_parsed_ && parser_->is_header_done()) {
      is_head_parsed_ = true;
      if (!TakeHead()) return;
      parser_->eager(true);
      if (!parser_->is_done()) {
        body_deadline_ = MonotonicNow() + host_->options().body_time;
        ArmForBody();
        if (AwaitsContinue()) return SendContinue();
      }
    }
    if (parser_->is_done()) return Handle();
    if (used == 0) break;
  }
  // The parser takes the head of a chunk, and all trailers, only once they are whole.
  if (input_.size() > host_->options().max_head_bytes) return Refuse(http::error::header_limit);
  ReadMore();
}

// A body has a time as a whole, and its next bytes have one.
void HttpSession::ArmForBody() {
  Arm(std::min(body_deadline_ - MonotonicNow(), host_->options().body_silence_time));
}

// RFC 9110, section 10.1.1: no 100 is sent to HTTP/1.0, or once part of the body has arrived.
bool HttpSession::AwaitsContinue() const {
  return parser_->get().version() >= 11 && input_.empty() &&
         absl::EqualsIgnoreCase(request_.Header("expect"), "100-continue");
}

void HttpSession::SendContinue() {
  static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  is_continuing_ = true;
  transport_->Write(net::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](Error error, std::size_t) {
                      self->is_continuing_ = false;
                      if (self->state_ != State::kReading) return;
                      if (error) return self->Close();
                      self->Guard([&] { self->Parse(); });
                    });
}

void HttpSession::Refuse(Error error) {
  if (error == http::error::body_limit) {
    // The head alone may tell that the body is too large; it is whole then.
    if (!is_head_parsed_) {
      const absl::Status head = ReadHead();
      if (!head.ok()) return RefuseWith(head);
    }
    return RefuseWith(
        Reason::kInputTooLarge,
        absl::StrCat("the body has more than ", host_->options().max_body_bytes(), " bytes"));
  }
  if (error == http::error::header_limit) {
    const absl::string_view what =
        is_head_parsed_ ? "the head of a chunk or the trailers" : "request line and headers";
    return RefuseWith(
        Reason::kHeadersTooLarge,
        absl::StrCat(what, " have more than ", host_->options().max_head_bytes, " bytes"));
  }
  RefuseWith(Reason::kBadRequest, absl::StrCat("no HTTP request: ", error.message()));
}

// Answers what never became a request.
void HttpSession::RefuseWith(Reason reason, absl::string_view message) {
  const auto& refuse = host_->options().refuse;
  HttpAnswer answer =
      refuse ? refuse(reason, message, request_)
             : HttpAnswer{.status = RowOf(reason).http_status, .body = absl::StrCat(message, "\n")};
  // RFC 9110, section 12.5.3.
  if (reason == Reason::kUnsupportedEncoding) {
    answer.headers.emplace_back("Accept-Encoding", "identity");
  }
  RefuseWith(std::move(answer));
}

// REQUIRES: `error` has a reason.
void HttpSession::RefuseWith(const absl::Status& error) {
  RefuseWith(GetErrorReason(error)->reason, error.message());
}

// What follows on the connection belongs to the refused request or cannot be understood.
void HttpSession::RefuseWith(HttpAnswer answer) {
  input_.clear();
  keep_alive_ = false;
  state_ = State::kHandling;
  Answer(std::move(answer));
}

// Reads the head that the parser has; false when the request was refused for it.
bool HttpSession::TakeHead() {
  const absl::Status head = ReadHead();
  if (!head.ok()) {
    RefuseWith(head);
    return false;
  }
  if (!surplus_.empty()) {
    const auto& is_probe = host_->options().is_probe;
    keep_alive_ = false;
    if (is_probe && parser_->is_done() && is_probe(request_)) return true;
    RefuseWith(Reason::kTooManyConnections, surplus_);
    return false;
  }
  return parser_->is_done() || TakeHeadOfBody();
}

// Decides about a request with a body; false when it was refused.
bool HttpSession::TakeHeadOfBody() {
  const auto& admit = host_->options().admit;
  std::optional<HttpAnswer> refusal = admit ? admit(request_) : std::nullopt;
  if (refusal) {
    RefuseWith(*std::move(refusal));
    return false;
  }
  const absl::Status encoding = CheckContentEncoding(request_);
  if (!encoding.ok()) RefuseWith(encoding);
  return encoding.ok();
}

absl::Status HttpSession::ReadHead() {
  Enter(Phase::kStalled);
  const auto& message = parser_->get();
  is_chunked_ = message.version() >= 11;
  keep_alive_ = message.keep_alive() && host_->options().keep_alive;
  return ReadRequestHead(
      message,
      {.has_tls = host_->options().certificates != nullptr, .is_chunked = parser_->chunked()},
      &request_);
}

void HttpSession::Handle() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  ++served_;
  Enter(Phase::kBusy);
  state_ = State::kHandling;
  Disarm();
  ReadAhead();
  host_->Handle(shared_from_this());
}

std::string HttpSession::Head(const HttpAnswer& answer, bool has_length) const {
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

void HttpSession::Answer(HttpAnswer answer) {
  if (state_ != State::kHandling || has_answer_) return;
  if (host_->closing()) keep_alive_ = false;
  std::string bytes = Head(answer, /*has_length=*/true);
  if (request_.method != "HEAD") bytes += answer.body;
  Send(std::move(bytes), [this] { EndExchange(); });
}

void HttpSession::BeginStream(HttpAnswer head) {
  if (state_ != State::kHandling || has_answer_) return;
  // Without chunks only the end of the connection ends the body.
  if (!is_chunked_ || host_->closing()) keep_alive_ = false;
  stream_head_ = Head(head, /*has_length=*/false);
}

void HttpSession::Write(std::string bytes, std::function<void()> on_written) {
  if (state_ != State::kHandling) return;
  std::string piece = std::exchange(stream_head_, "");
  if (is_chunked_) {
    absl::StrAppend(&piece, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
  } else {
    piece += bytes;
  }
  Send(std::move(piece), std::move(on_written));
}

void HttpSession::EndStream(bool whole) {
  if (state_ != State::kHandling) return;
  std::string piece = std::exchange(stream_head_, "");
  if (whole && is_chunked_) {
    piece += "0\r\n\r\n";
  } else {
    keep_alive_ = false;
  }
  if (piece.empty()) return EndExchange();
  Send(std::move(piece), [this] { EndExchange(); });
}

// `done` runs only if all was sent and the session is still open.
void HttpSession::Send(std::string bytes, std::function<void()> done) {
  Enter(Phase::kBusy);
  has_answer_ = true;
  outgoing_ = std::move(bytes);
  Arm(host_->options().write_time());
  transport_->Write(net::buffer(outgoing_),
                    [self = shared_from_this(), done = std::move(done)](Error error, std::size_t) {
                      if (self->state_ == State::kClosed) return;
                      if (error) return self->Close();
                      self->Disarm();
                      self->Guard(done);
                    });
}

void HttpSession::EndExchange() {
  on_gone_ = nullptr;
  TakeBody();
  if (keep_alive_ && !host_->closing()) return BeginRequest();
  Linger();
}

// Closing while the peer still sends would make its system drop the answer.
void HttpSession::Linger() {
  state_ = State::kLingering;
  Enter(Phase::kStalled);
  input_.clear();
  transport_->ShutdownSend();
  Arm(kLingerTime);
  ReadMore();
}

void HttpSession::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  Disarm();
  timer_.cancel();
  transport_->Close();
  const std::function<void()> gone = std::exchange(on_gone_, nullptr);
  if (gone) gone();
}

void HttpSession::Arm(absl::Duration time) {
  is_armed_ = true;
  timer_.expires_after(absl::ToChronoNanoseconds(time));
  timer_.async_wait([self = shared_from_this()](Error error) {
    if (!error) self->Guard([&] { self->OnTimer(); });
  });
}

void HttpSession::OnTimer() {
  // The timer may have been set again, or not be needed any more, while this call was on its way.
  if (!is_armed_ || timer_.expiry() > std::chrono::steady_clock::now()) return;
  // A client that does not even read the 100 of a body would not read this either.
  if (state_ == State::kReading && has_begun_ && !is_continuing_) {
    return RefuseWith(Reason::kRequestTimeout, "the request did not arrive in time");
  }
  Close();
}

}  // namespace quire::server
