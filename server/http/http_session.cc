#include "server/http/http_session.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "server/http/request_head.h"

namespace quire::server {
namespace {

namespace net = boost::asio;

// Maximum number of bytes that a peer may still send after the last answer of a connection, and
// maximum time for sending them.
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
                         std::unique_ptr<Transport> transport, std::string over_limit_message)
    : closer_{host, number},
      host_(host),
      transport_(std::move(transport)),
      over_limit_message_(std::move(over_limit_message)),
      timer_(transport_->executor()),
      reader_(host->options().certificates != nullptr) {}

// Runs `work`. Our code does not throw, but libraries may. After an exception the state of the
// session is unknown, so the connection is closed.
template <typename Work>
void HttpSession::CloseOnException(const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    log::Error("http", "closing the connection: exception", {{"error", error.what()}});
  }
  Close();
}

void HttpSession::Begin() {
  net::dispatch(transport_->executor(), [self = shared_from_this()] {
    self->CloseOnException([&] {
      // The server may have begun to shut down before it added this session to its table.
      if (self->host_->closing()) return self->Close();
      self->ArmTimer(self->host_->options().head_time);
      self->transport_->Handshake([self](Error error) {
        self->CloseOnException([&] {
          if (error) return self->Close();
          self->exchange_.mutable_request()->certificate_name = self->transport_->CertificateName();
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

// Sets the phase, unless the session is being evicted. An eviction cannot be undone by new bytes.
void HttpSession::EnterPhase(Phase phase) {
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
            [self = shared_from_this(), work = std::move(work)] { self->CloseOnException(work); });
}

void HttpSession::BeginRequest() {
  if (host_->closing()) return Close();
  const HttpServerOptions& options = host_->options();
  state_ = State::kReading;
  exchange_.Reset();
  reader_.Begin(
      {.max_head_bytes = options.max_head_bytes, .max_body_bytes = options.max_body_bytes()},
      exchange_.mutable_request());
  const bool has_begun = reader_.has_begun();
  ArmTimer(num_served_ == 0 || has_begun ? options.head_time : options.idle_time);
  if (num_served_ > 0) EnterPhase(has_begun ? Phase::kAwaitingBytes : Phase::kIdle);
  if (has_begun) return Parse();
  ReadMore();
}

// While a handler runs, reading continues until the buffered bytes reach their limit.
void HttpSession::ReadMore() {
  if (is_reading_) return;
  if (state_ == State::kHandling &&
      reader_.num_buffered_bytes() >= host_->options().max_head_bytes) {
    return;
  }
  is_reading_ = true;
  transport_->ReadSome(net::buffer(chunk_),
                       [self = shared_from_this()](Error error, std::size_t size) {
                         self->CloseOnException([&] { self->OnRead(error, size); });
                       });
}

void HttpSession::OnRead(Error error, std::size_t size) {
  is_reading_ = false;
  // Restarts the time of the phase, so that a connection that receives bytes is not evicted.
  if (phase_.load() == Phase::kAwaitingBytes) EnterPhase(Phase::kAwaitingBytes);
  if (state_ == State::kLingering) {
    lingered_bytes_ += size;
    if (error || lingered_bytes_ > kMaxLingerBytes) return Close();
    return ReadMore();
  }
  if (state_ != State::kReading && state_ != State::kHandling) return;
  if (error) return Close();
  const bool had_begun = reader_.has_begun();
  reader_.Append(absl::string_view(chunk_.data(), size));
  if (state_ == State::kHandling || !reader_.has_begun()) return ReadMore();
  if (!had_begun) {
    if (num_served_ > 0) EnterPhase(Phase::kAwaitingBytes);
    ArmTimer(host_->options().head_time);
  } else if (reader_.is_head_parsed()) {
    ArmBodyTimer();
  }
  if (!is_writing_continue_) Parse();  // otherwise SendContinue calls Parse when it has written
}

void HttpSession::Parse() {
  for (;;) {
    const absl::StatusOr<RequestReader::Event> event = reader_.Next();
    if (!event.ok()) return Refuse(MakeRefusal(event.status()));
    if (*event == RequestReader::Event::kNeedsMore) return ReadMore();
    if (*event == RequestReader::Event::kRequest) return Handle();
    std::optional<HttpAnswer> refusal = ProcessHead();
    if (refusal) return Refuse(*std::move(refusal));
    if (reader_.is_complete()) continue;
    body_deadline_ = MonotonicNow() + host_->options().body_time;
    ArmBodyTimer();
    if (reader_.awaits_continue()) return SendContinue();
  }
}

// Processes the head of a request. If the request must be refused, returns the answer to send.
std::optional<HttpAnswer> HttpSession::ProcessHead() {
  const HttpServerOptions& options = host_->options();
  const HttpRequest& request = exchange_.request();
  EnterPhase(Phase::kAwaitingBytes);
  exchange_.SetFraming(reader_.keep_alive() && options.keep_alive && over_limit_message_.empty(),
                       reader_.is_http_1_1());
  if (!over_limit_message_.empty()) {
    if (options.is_probe && reader_.is_complete() && options.is_probe(request)) {
      return std::nullopt;
    }
    return MakeRefusal(
        WithReason(absl::UnavailableError(over_limit_message_), Reason::kTooManyConnections));
  }
  if (reader_.is_complete()) return std::nullopt;
  std::optional<HttpAnswer> refusal =
      options.check_before_body ? options.check_before_body(request) : std::nullopt;
  if (refusal) return refusal;
  const absl::Status encoding = CheckContentEncoding(request);
  if (!encoding.ok()) return MakeRefusal(encoding);
  return std::nullopt;
}

// REQUIRES: `error` has a reason.
HttpAnswer HttpSession::MakeRefusal(const absl::Status& error) const {
  const Reason reason = GetErrorReason(error)->reason;
  const auto& refuse = host_->options().refuse;
  HttpAnswer answer = refuse ? refuse(reason, error.message(), exchange_.request())
                             : HttpAnswer{.status = RowOf(reason).http_status,
                                          .body = absl::StrCat(error.message(), "\n")};
  // RFC 9110, section 12.5.3.
  if (reason == Reason::kUnsupportedEncoding) {
    answer.headers.emplace_back("Accept-Encoding", "identity");
  }
  return answer;
}

// Sends the answer and closes the connection. Further bytes of the connection belong to the refused
// request or cannot be parsed.
void HttpSession::Refuse(HttpAnswer answer) {
  reader_.Clear();
  state_ = State::kHandling;
  exchange_.SetFraming(/*keep_alive=*/false, /*is_chunked=*/false);
  exchange_.Open();
  exchange_.Answer(std::move(answer));
}

// A body has a deadline for the whole body and one for the next bytes.
void HttpSession::ArmBodyTimer() {
  ArmTimer(std::min(body_deadline_ - MonotonicNow(), host_->options().body_silence_time));
}

void HttpSession::SendContinue() {
  static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  is_writing_continue_ = true;
  transport_->Write(net::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](Error error, std::size_t) {
                      self->is_writing_continue_ = false;
                      if (self->state_ != State::kReading) return;
                      if (error) return self->Close();
                      self->CloseOnException([&] { self->Parse(); });
                    });
}

void HttpSession::Handle() {
  ++num_served_;
  EnterPhase(Phase::kBusy);
  state_ = State::kHandling;
  is_timer_armed_ = false;
  ReadMore();
  exchange_.Open();
  // The exchange is a member, so the handler shares ownership of the session.
  host_->Handle(std::shared_ptr<HttpExchange>(shared_from_this(), &exchange_));
}

void HttpSession::Send(std::string bytes, std::function<void()> done) {
  EnterPhase(Phase::kBusy);
  outgoing_ = std::move(bytes);
  ArmTimer(host_->options().write_time());
  transport_->Write(net::buffer(outgoing_),
                    [self = shared_from_this(), done = std::move(done)](Error error, std::size_t) {
                      if (self->state_ == State::kClosed) return;
                      if (error) return self->Close();
                      self->is_timer_armed_ = false;
                      self->CloseOnException(done);
                    });
}

void HttpSession::OnAnswered() {
  if (exchange_.keep_alive() && !host_->closing()) return BeginRequest();
  Linger();
}

// Stops sending but keeps reading. If the connection were closed while the peer still sends, the
// peer's TCP stack would discard the answer.
void HttpSession::Linger() {
  state_ = State::kLingering;
  EnterPhase(Phase::kAwaitingBytes);
  reader_.Clear();
  transport_->ShutdownSend();
  ArmTimer(kLingerTime);
  ReadMore();
}

void HttpSession::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  is_timer_armed_ = false;
  timer_.cancel();
  transport_->Close();
  exchange_.Abandon();
}

void HttpSession::ArmTimer(absl::Duration time) {
  is_timer_armed_ = true;
  timer_.expires_after(absl::ToChronoNanoseconds(time));
  timer_.async_wait([self = shared_from_this()](Error error) {
    if (!error) self->CloseOnException([&] { self->OnTimer(); });
  });
}

// Names the limit that a request has exceeded.
std::string HttpSession::DescribeTimeout() const {
  const HttpServerOptions& options = host_->options();
  if (!reader_.is_head_parsed()) {
    return absl::StrCat("the head of the request is not complete ",
                        absl::FormatDuration(options.head_time), " after its first byte");
  }
  if (MonotonicNow() < body_deadline_) {
    return absl::StrCat("no byte of the body has arrived for ",
                        absl::FormatDuration(options.body_silence_time));
  }
  return absl::StrCat("the body of the request is not complete ",
                      absl::FormatDuration(options.body_time), " after its head");
}

void HttpSession::OnTimer() {
  // The timer may have been set again or disarmed after it expired.
  if (!is_timer_armed_ || timer_.expiry() > std::chrono::steady_clock::now()) return;
  // A client that does not read "100 Continue" would not read this answer either.
  if (state_ == State::kReading && reader_.has_begun() && !is_writing_continue_) {
    return Refuse(MakeRefusal(
        WithReason(absl::DeadlineExceededError(DescribeTimeout()), Reason::kRequestTimeout)));
  }
  Close();
}

}  // namespace quire::server
